"""Ways to upstreams: one module for each kind of transport."""
