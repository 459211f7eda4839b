"""What `./dev` runs: checks, demonstrations, mutants. Not part of the package."""
