# Start and stop of a VM with 1 to 255 disks on files, by xy and by xl: bench-plug.sh [ROUNDS]
exec bash /lab/bench-plug.bash "$@"
