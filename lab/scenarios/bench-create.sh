# Times and counts of a unikernel's create: bench-create.sh xy|xl|xl-on-xylem CREATES
exec bash /lab/bench-create.bash "$@"
