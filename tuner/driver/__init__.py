"""One job under Ray Tune: Tune's hooks become events of the loop, and the loop's commands become calls of actors."""
