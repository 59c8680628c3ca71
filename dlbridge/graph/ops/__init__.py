"""Op types, a folder for each family: `declarations`, `functions`, `kernels`, `<framework>`."""
