// filtering.

import {fill} from "../dom.js";
import {heading} from "../ui.js";

export async function show(root) {
  fill(root, heading("filtering"));
}
