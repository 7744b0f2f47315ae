# lab-addition: lvm
# The storage suite on logical volumes, thin and thick, of a real LVM on a disk that is a file.
. /lab/lib.sh
. /lab/storage.sh
# ext4 brings the checksum that the device mapper asks for by name.
modprobe -a ext4 dm-mod dm-thin-pool dm-snapshot || fail "no device mapper"
mkdir -p /run/lock/lvm /etc/lvm
truncate -s 192M /tmp/disk.lvm
disk=$(losetup -f)
losetup "$disk" /tmp/disk.lvm
start_xylemd

without_udev="activation{udev_sync=0 udev_rules=0} devices{obtain_device_list_from_udev=0}"

# with_device VDI COMMAND...: its device is there while the command runs, as the last argument.
with_device() {
    path=xylem-s/vdi-${1#*:}
    shift
    lvchange_output=$(lvm lvchange --config "$without_udev" -ay -K $path 2>&1) || echo "$lvchange_output"
    "$@" "/dev/$path"
    lvm lvchange --config "$without_udev" -an $path >/dev/null 2>&1
}
write_image() { dd if=/guest/disk.img "of=$1" conv=fsync 2>/dev/null; }
read_text() {
    mkdir -p /tmp/look
    mount -o ro -t ext4 "$1" /tmp/look && cat /tmp/look/guest.txt
    umount /tmp/look
}
put() { with_device "$1" write_image; }
text() { with_device "$1" read_text; }
fill_up() { xy vdi-create s:filler "$(xy sr-info s | awk '/^free_bytes/ { print $3 }')"; }
free_up() { xy vdi-destroy s:filler; }

can() {
    case $1 in
        # A local disk has no server; a thin pool is over-provisioned on purpose.
        lose | fill_up) return 1 ;;
    esac
}
storage_suite lvmthin "device=$disk"

can() {
    case $1 in
        # Thick volumes are copied and zeroed, not shared.
        snapshot | snapshot_while_written | grow_while_written | lose) return 1 ;;
    esac
}
storage_suite lvm "device=$disk"

check "no volume group is left" [ -z "$(lvm vgs --noheadings --config "$without_udev" 2>/dev/null)" ]
