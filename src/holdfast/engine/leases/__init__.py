"""Taking runs, staying alive, and giving back what nobody works on."""
