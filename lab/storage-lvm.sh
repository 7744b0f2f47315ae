# What the storage suites on logical volumes have in common: . /lab/storage-lvm.sh

# ext4 brings the checksum that the device mapper asks for by name.
modprobe -a ext4 dm-mod dm-thin-pool dm-snapshot || fail "no device mapper"
mkdir -p /run/lock/lvm /etc/lvm
without_udev="activation{udev_sync=0 udev_rules=0} devices{obtain_device_list_from_udev=0}"

# with_device VDI COMMAND...: its device is there while the command runs, as the last argument.
with_device() {
    path=xylem-s/vdi-${1#*:}
    shift
    lvchange_output=$(lvm lvchange --config "$without_udev" -ay -K "$path" 2>&1) || echo "$lvchange_output"
    "$@" "/dev/$path"
    lvm lvchange --config "$without_udev" -an "$path" >/dev/null 2>&1
}
write_image() { dd if=/guest/disk.img "of=$1" conv=fsync 2>/dev/null; }
put() { with_device "$1" write_image; }
text() { with_device "$1" mounted_text; }
fill_up() { xy vdi-create s:filler "$(xy sr-info s | awk '/^free_bytes/ { print $3 }')"; }
free_up() { xy vdi-destroy s:filler; }

no_group_is_left() {
    check "no volume group is left" [ -z "$(lvm vgs --noheadings --config "$without_udev" 2>/dev/null)" ]
}

# Where the daemon is killed: each time it looks for the volume first (twice for a copy).
kills_of_volumes() {
    kills_detach="program:1 rename:1 record:1"
    kills_destroy=program:2
}
# Made under a tag, activated, zeroed or copied, deactivated, the tag taken away.
kills_of_thick() {
    kills_of_volumes
    kills_create="program:2 program:3 program:5 program:7"
    kills_clone="program:4 program:9 program:11 program:13"
    kills_resize="program:3 program:4 program:8 program:11"
}
