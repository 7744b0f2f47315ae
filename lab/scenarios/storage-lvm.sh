# lab-addition: lvm
# The storage suite on thick logical volumes of a real LVM, on a disk that is a file.
. /lab/lib.sh
. /lab/storage.sh
. /lab/storage-lvm.sh
truncate -s 192M /tmp/disk.lvm
disk=$(losetup -f)
losetup "$disk" /tmp/disk.lvm
start_xylemd

can() {
    case $1 in
        # Thick volumes are copied and zeroed, not shared; a local disk has no server.
        snapshot | snapshot_while_written | grow_while_written | lose | kill_driver | outlive_*) return 1 ;;
    esac
}
kills_of_thick
storage_suite lvm "device=$disk"
no_group_is_left
