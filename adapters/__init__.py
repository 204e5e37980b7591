"""One folder per outside thing: databases, sockets, files, clocks."""
