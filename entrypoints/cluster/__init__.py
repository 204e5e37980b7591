"""A node's side of the Kubernetes cluster that it works with; begin at `cluster`."""
