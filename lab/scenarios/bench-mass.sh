# Many unikernels are made one after the other, run, and are all shut down: bench-mass.sh xy|xl COUNT
exec bash /lab/bench-mass.bash "$@"
