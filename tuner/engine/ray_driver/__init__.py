"""One job under Ray Tune: Tune's hooks become events of the loop, the loop's orders become calls of actors."""
