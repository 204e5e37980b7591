// Any one object, as the API has it. The namespace is "-" where the kind has none.

import {fill} from "../dom.js";
import {get, part} from "../api.js";
import {document_, heading} from "../ui.js";

export async function show(root, {kind, namespace, name, signal}) {
  const below = namespace === "-" ? "" : `/namespaces/${part(namespace)}`;
  fill(root, heading(name, kind), document_(await get(`${below}/${part(kind)}/${part(name)}`, {}, signal)));
}
