# lab-addition: lvm
# Start and stop of VMs with 1 to 255 disks on files and on LVM, by xy and by xl: bench-plug.sh [ROUNDS [SIZES [VMS]]]
exec bash /lab/bench-plug.bash "$@"
