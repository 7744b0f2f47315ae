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
        # A local disk has no server; a thin pool is over-provisioned on purpose, see below.
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

echo "== the pool is full"
check "sr-create" xy sr-create s lvmthin "device=$disk"
check "vdi-create one" xy vdi-create s:one 8M
# More than the pool has.
check "vdi-create large" xy vdi-create s:large 256M
put s:one
vdi_unikernel before s:one w
vdi_unikernel after s:one w
check "create before" xy create -q /tmp/before.cfg
fill() { dd if=/dev/urandom "of=$1" bs=1M oflag=direct; }
begun=$(now)
with_device s:large fill >/tmp/fill.log 2>&1
took=$(seconds_since "$begun")
cat /tmp/fill.log
check "who writes more than there is gets an error" grep -q 'error writing' /tmp/fill.log
check "within 45 s ($took)" [ "${took%.*}" -lt 45 ]
xy sr-info s
check "who was there ends" xy destroy before
check "and another begins" xy create -q /tmp/after.cfg
check "which has its disk" console_wait after 'vbd 51712' 60
check "and ends" xy destroy after
first_line() { mkdir -p /tmp/look && mount -t ext4 -o ro "$1" /tmp/look && head -n 1 /tmp/look/hello.txt; umount /tmp/look; }
check "what was written before can be read" [ -n "$(with_device s:one first_line)" ]
check "a VDI is destroyed" xy vdi-destroy s:large
has_room() { xy sr-info s | awk '$1 == "free_bytes" && $3 > 100000000 { good = 1 } END { exit !good }'; }
check "and there is room again" has_room
check "vdi-destroy one" xy vdi-destroy s:one
check "sr-destroy" xy sr-destroy s
no_group_is_left
