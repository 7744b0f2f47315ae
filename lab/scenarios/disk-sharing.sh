# Many may read a disk, or one may write: who uses it and how, and how another wants it. Prints a table of what was promised
# and what came.
# lab-addition: lvm
. /lab/lib.sh
. /lab/storage-lvm.sh
modprobe ext4
start_xylemd
host_state >/results/state.before

# A file by four names, a partitioned disk, a volume group, two file systems.
mkdir -p /img /bind /mnt
truncate -s 8M /img/a.raw /img/b.raw /img/disk.raw /img/swap.raw /img/vm.raw
truncate -s 64M /img/pv.raw /img/fs.raw
ln -s /img/a.raw /img/link.raw
ln /img/a.raw /img/hard.raw
mount --bind /img /bind
loop_of() { losetup -f; }
fs=$(loop_of); losetup "$fs" /img/fs.raw
pv=$(loop_of); losetup "$pv" /img/pv.raw
mke2fs "$fs" >/dev/null 2>&1 || fail "no file system"
lvm pvcreate -q --config "$without_udev" "$pv" >/dev/null 2>&1
lvm vgcreate -q --config "$without_udev" shared "$pv" >/dev/null 2>&1
for volume in one two; do lvm lvcreate -q --config "$without_udev" -an -Wn -Zn -L 4M -n $volume shared >/dev/null 2>&1; done
lvm vgchange -q --config "$without_udev" -ay shared >/dev/null 2>&1 || true
lvm vgmknodes --config "$without_udev" >/dev/null 2>&1 || true
mkdir -p /dev/disk/by-id
lv=$(ls /dev/mapper/shared-one) || fail "no volume: $(lvm vgs --config "$without_udev" 2>&1)"
ln -sf "$lv" /dev/disk/by-id/dm-name-one
major=$((0x$(stat -L -c %t "$lv"))) minor=$((0x$(stat -L -c %T "$lv")))
mknod /img/node b "$major" "$minor"

unikernel_cfg one "type = 'pv'" "extra = 'xylem.quiet'"
unikernel_cfg two "type = 'pv'" "extra = 'xylem.quiet'"
for name in one two; do check "create $name" xy create -q /tmp/$name.cfg; done

# xl_refuses DOMAIN DISK: its script says who uses the disk, and the attach fails.
xl_refuses() {
    xl block-attach "$1" "$2" >/tmp/xl.out 2>&1 && return 1
    cat /tmp/xl.out
    grep -q "mounted in a guest domain" /tmp/xl.out
}

rows=0 wrong=0
# row USED-AS USE WANTED MODE PROMISED: "taken", or a pattern of the refusal.
row() {
    rows=$((rows + 1))
    if xy block-attach two "$3" raw xvdc "$4" >/tmp/row.out 2>&1; then
        came=taken
        xy block-detach --force two xvdc || came="taken, and not detached"
        wait_unplugged 51744
    else
        came=$(cat /tmp/row.out)
    fi
    verdict=ok
    case $5 in
        taken) [ "$came" = taken ] || verdict=WRONG ;;
        *) echo "$came" | grep -q -- "$5" || verdict=WRONG ;;
    esac
    [ $verdict = ok ] || wrong=$((wrong + 1))
    [ "$5" = taken ] || [ $verdict = WRONG ] || came="refused: ${came#*in use }"
    printf '%-5s | %-22s | %-14s | %-26s | %-2s | %s\n' "$verdict" "$1" "$2" "$3" "$4" "$came"
}
# dom0 drops the backend device a moment after the store nodes are gone, and misses a new one that comes before that.
wait_unplugged() { wait_for "! ls /sys/bus/xen-backend/devices | grep -q 'vbd-.*-$1'" 20; }
attach() { xy block-attach one "$1" raw xvdb "$2" || fail "one cannot have $1"; }
detach() { xy block-detach --force one xvdb; wait_unplugged 51728; }
ours="by VM one (vbd xvdb)"

echo "== ours: files"
printf '%-5s | %-22s | %-14s | %-26s | %-2s | %s\n' "" "used by" "as" "wanted" "" "came"
for name in a.raw link.raw hard.raw; do
    attach /img/a.raw w
    row "VM one, w" /img/a.raw /img/$name w "read-write $ours"
    row "VM one, w" /img/a.raw /bind/$name r "read-write $ours"
    detach
done
attach /bind/hard.raw r
row "VM one, r" /bind/hard.raw /img/link.raw w "read-only $ours"
row "VM one, r" /bind/hard.raw /img/link.raw r taken
row "VM one, r" /bind/hard.raw /img/link.raw 'w!' taken
detach
attach /img/a.raw w
row "VM one, w" /img/a.raw /img/a.raw 'w!' taken
detach
attach /img/a.raw 'w!'
row "VM one, w!" /img/a.raw /img/hard.raw w "read-write $ours"
row "VM one, w!" /img/a.raw /img/hard.raw r taken
detach
row "unused" - /img/a.raw w taken

echo "== ours: volumes"
for name in /dev/mapper/shared-one /dev/disk/by-id/dm-name-one /img/node; do
    attach /dev/mapper/shared-one w
    row "VM one, w" /dev/mapper/shared-one $name r "read-write $ours"
    detach
done
attach /img/node r
row "VM one, r" /img/node /dev/mapper/shared-one r taken
row "VM one, r" /img/node /dev/mapper/shared-one w "read-only $ours"
row "VM one, r" /img/node "$pv" w "read-only $ours"
row "VM one, r" /img/node /dev/mapper/shared-two w taken
detach

echo "== dom0: loop devices, volumes, mounts, swap"
second=$(loop_of); losetup "$second" /img/b.raw
row "dom0's loop device" /img/b.raw /img/b.raw w "dom0 as $second"
row "dom0's loop device" /img/b.raw /img/b.raw r "dom0 as $second"
row "dom0's loop device" /img/b.raw "$second" w taken
third=$(loop_of); losetup "$third" /img/b.raw
row "dom0's loop devices" /img/b.raw "$second" w "dom0 as $third"
losetup -d "$third"
attach "$second" w
row "VM one, w" "$second" /img/b.raw r "$second\|$ours"
row "VM one, w" "$second" "$second" r "read-write $ours"
row "VM one, w" "$second" "$second" 'w!' taken
detach
losetup -d "$second"
third=$(loop_of); losetup -r "$third" /img/b.raw
row "dom0's r/o loop device" /img/b.raw /img/b.raw r taken
row "dom0's r/o loop device" /img/b.raw /img/b.raw w "read-only by dom0 as $third"
losetup -d "$third"
row "volume group" "$pv" "$pv" r "logical volume /dev/mapper/shared-"
row "volume group" "$pv" /img/pv.raw w "dom0 as $pv\|logical volume"
row "volume group" "$pv" "$pv" 'w!' taken
mount "$fs" /mnt || fail "cannot mount"
row "mounted rw" "$fs" "$fs" w "read-write by dom0, mounted at /mnt"
row "mounted rw" "$fs" "$fs" r "read-write by dom0, mounted at /mnt"
row "mounted rw" "$fs" /img/fs.raw r "dom0"
row "mounted rw" "$fs" "$fs" 'w!' taken
mount -o remount,ro /mnt
row "mounted ro" "$fs" "$fs" w "read-only by dom0, mounted at /mnt"
row "mounted ro" "$fs" "$fs" r taken
umount /mnt
row "unmounted" - "$fs" w taken
mkswap /img/swap.raw >/dev/null 2>&1
dd if=/dev/zero of=/img/swap.raw bs=1M count=8 2>/dev/null; mkswap /img/swap.raw >/dev/null 2>&1
if swapon /img/swap.raw 2>/dev/null; then
    row "swap file" /img/swap.raw /img/swap.raw r "by dom0 as swap"
    swapoff /img/swap.raw
else
    # A file system without swap files: the same by a device.
    swap=$(loop_of); losetup "$swap" /img/swap.raw
    swapon "$swap" || echo "no swap here"
    row "swap" "$swap" "$swap" r "by dom0 as swap"
    row "swap" "$swap" /img/swap.raw w "by dom0"
    swapoff "$swap"; losetup -d "$swap"
fi

echo "== VDIs"
mkdir -p /srv
check "an SR" xy sr-create s file path=/srv/s
check "a VDI" xy vdi-create s:v 8M
attach s:v w
row "VM one, w" s:v s:v r "in use by"
row "VM one, w" s:v /srv/s/v.raw r "read-write $ours"
detach
attach /srv/s/v.raw r
row "VM one, r" /srv/s/v.raw s:v w "read-only $ours"
row "VM one, r" /srv/s/v.raw s:v r taken
row "VM one, r" /srv/s/v.raw s:v 'w!' "a VDI cannot be shared"
detach

echo "== a daemon that was killed"
attach /img/a.raw w
xy block-attach one /dev/mapper/shared-one raw xvdd w
kill_xylemd
start_xylemd
row "VM one, w" /img/a.raw /img/hard.raw r "read-write $ours"
row "VM one, w" shared-one /img/node r "read-write by VM one (vbd xvdd)"
rm -rf /run/xylem/disks /run/xylem/disk-owners
kill_xylemd
start_xylemd
row "VM one, older daemon" /img/a.raw /img/hard.raw r "read-write $ours"
row "VM one, older daemon" shared-one /img/node r "read-write by VM one (vbd xvdd)"
check "a reboot keeps them" xy reboot one

echo "== two creates at once"
for name in three four; do
    unikernel_cfg $name "type = 'pv'" "extra = 'xylem.quiet'" "disk = ['/img/vm.raw,raw,xvda,w']"
    xy create -q /tmp/$name.cfg >/tmp/$name.out 2>&1 &
    eval "$name=\$!"
done
made=0
wait "$three" && made=$((made + 1))
wait "$four" && made=$((made + 1))
check "one of two" [ $made = 1 ]
cat /tmp/three.out /tmp/four.out
xy destroy three 2>/dev/null; xy destroy four 2>/dev/null

echo "== xl's domains, and xl's own check of ours"
detach
# xl gives dom0 10 s to serve a new disk, and dom0 begins only when the last one is gone.
wait_unplugged 51712
cat >/tmp/theirs.cfg <<CONFIG
name = "theirs"
type = "pv"
kernel = "/guest/unikernel"
memory = 8
disk = [ "phy:/dev/mapper/shared-two,xvda,w" ]
CONFIG
check "xl create" xl create -q /tmp/theirs.cfg
row "xl's theirs, w" shared-two /dev/mapper/shared-two r "read-write by domain .* (theirs) of another toolstack (vbd xvda)"
row "xl's theirs, w" shared-two /dev/mapper/shared-two w "of another toolstack"
row "xl's theirs, w" shared-two /dev/mapper/shared-two 'w!' taken
check "xl's script refuses a volume of ours" xl_refuses theirs phy:/dev/mapper/shared-one,xvdb,w
xl destroy theirs
row "xl's theirs, gone" shared-two /dev/mapper/shared-two w taken

echo "$rows rows, $wrong wrong"
check "all as promised" [ $wrong = 0 ]
xy destroy one; xy destroy two
check "no claim is left" [ -z "$(find /run/xylem/disks /run/xylem/disk-owners -type f 2>/dev/null)" ]
