"""Mathematics: the environment, and the calculator that runs in a helper process."""
