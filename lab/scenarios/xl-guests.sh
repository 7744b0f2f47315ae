# What Debian's own tools do on this host: run with `--store c`.
#
# xl creates a Linux guest, PV and PVH, with two CPUs, a disk behind a loop device and a vif on
# the bridge; the guest says what it found, then is shut down. Also a yardstick for Xylem.
. /lab/lib.sh

# guest NAME TYPE NUMBER: the configuration of one guest.
guest() {
    cp /guest/disk.img "/root/$1.img"
    cat <<CONFIG
name = "$1"
type = "$2"
kernel = "$kernel"
ramdisk = "/guest/initramfs"
extra = "console=hvc0 quiet $FAST_BOOT xylem.ip=10.0.0.$3"
memory = 128
vcpus = 2
disk = [ "format=raw,vdev=xvda,access=rw,target=/root/$1.img" ]
vif = [ "mac=00:16:3e:00:00:0$3,bridge=xenbr0" ]
on_crash = "preserve"
CONFIG
}

# With --vmlinux, xl need not unpack the kernel for each guest.
kernel=/guest/vmlinux
[ -e $kernel ] || kernel=/guest/vmlinuz

for type in ${*:-pv pvh}; do
    name=linux-$type
    case $type in pv) number=2 ;; *) number=3 ;; esac
    guest "$name" "$type" $number >"/root/$name.cfg"

    start=$(now)
    check "xl create $name" xl create -q "/root/$name.cfg"
    echo "create took $(seconds_since "$start") s"
    check "$name says that it is ready" console_wait "$name" 'XYLEM-GUEST: ready' 300
    echo "ready after $(seconds_since "$start") s"
    grep XYLEM-GUEST "$(console_log "$name")"
    for line in vcpus=2 disk=ok 'disk_written=written by a guest' network=ok; do
        check "$name has $line" console_wait "$name" "XYLEM-GUEST: $line" 1
    done
    xl list
    xenstore-ls -f "/local/domain/$(xl domid "$name")" >"/results/$name-store.txt"
    check "$name shuts down" xl shutdown -w "$name"
    check "$name is gone" wait_for "! xl domid $name" 90
done

check "the loop devices are free again" wait_for '[ -z "$(losetup -a)" ]' 10
check "the bridge has no ports left" wait_for '[ -z "$(ls /sys/class/net/xenbr0/brif)" ]' 10
xl list
