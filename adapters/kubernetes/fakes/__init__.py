"""An API server in memory, on whatever clock its event loop has. tests/kube holds it to what a real
one answers."""
