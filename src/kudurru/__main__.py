"""`python -m kudurru` is the command `kudurru`."""

from kudurru.entrypoints.cli.main import run

if __name__ == "__main__":
    run()
