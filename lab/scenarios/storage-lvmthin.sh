# lab-addition: lvm
# The storage suite on thin logical volumes of a real LVM, on a disk that is a file.
. /lab/lib.sh
. /lab/storage.sh
. /lab/storage-lvm.sh
truncate -s 192M /tmp/disk.lvm
disk=$(losetup -f)
losetup "$disk" /tmp/disk.lvm
start_xylemd

can() {
    case $1 in
        # A local disk has no server; a thin pool is over-provisioned on purpose.
        lose | fill_up | kill_driver | outlive_*) return 1 ;;
    esac
}
kills_of_volumes
kills_create=program:2
kills_snapshot=program:3
kills_clone=program:3
kills_resize=program:2
storage_suite lvmthin "device=$disk"
no_group_is_left
