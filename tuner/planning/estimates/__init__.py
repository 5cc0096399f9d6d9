"""What a described run would cost on each machine of the catalogue, and the questions around it: pure, each by a cited formula."""
