# lab-addition: qemu
# The storage suite on images in format qcow2, each served by a qemu-nbd to the kernel's network block devices.
. /lab/lib.sh
. /lab/storage.sh
file_system /srv
mkdir /srv/vdis
modprobe nbd nbds_max=32 || fail "no network block devices"
start_xylemd

put() { qemu-img convert -n -f raw -O qcow2 /guest/disk.img "/srv/vdis/${1#*:}.qcow2"; }
text() {
    qemu-img convert -f qcow2 -O raw "/srv/vdis/${1#*:}.qcow2" /tmp/look.raw && mounted_text /tmp/look.raw loop
}
fill_up() { dd if=/dev/urandom of=/srv/filler bs=64k 2>/dev/null; }
free_up() { rm /srv/filler; }
kill_driver() { kill -9 $(pids_of "[s]ocket=/run/xylem/nbd/$1.socket"); }
can() {
    case $1 in
        # ext4 cannot share blocks; a program has the image while it is used; a folder has no server.
        snapshot_while_written | grow_while_written | lose | outlive_*) return 1 ;;
    esac
}

# The mark of a network block device is a file too, and goes after the socket of its qemu-nbd.
kills_attach="rename:1 rename:2 rename:3 rename:4"
kills_detach="program:1 unlink:1 unlink:2 rename:1 unlink:3"
kills_create="program:1 renameat2:1"
kills_resize="program:1"
storage_suite qcow2 path=/srv/vdis

# What reads the image has few rights.
qemu-img create -q -f qcow2 /srv/image.qcow2 4M
unikernel_cfg image "disk = ['/srv/image.qcow2,qcow2,xvda,w']"
check "an image without an SR" xy create -q /tmp/image.cfg
server=$(pids_of '[q]emu-nbd')
device=$(basename "$(find /sys/block -maxdepth 1 -name 'nbd*' -exec test -e {}/pid ';' -print)")
check "its server is confined" confined "$server" "/xylem/xylem-$device"
check "it has no network" [ "$(awk 'NR > 2 { print $1 }' "/proc/$server/net/dev")" = lo: ]
check "it goes with its VM" xy destroy image

check "no qemu-nbd is left" [ -z "$(pids_of '[q]emu-nbd')" ]
check "no mark is left" [ -z "$(ls /run/xylem/nbd)" ]
check "no device is connected" sh -c '! ls /sys/block/nbd*/pid'
