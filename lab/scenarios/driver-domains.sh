# Driver domains: a Linux guest with Xen's own `xl devd` serves disks and interfaces of other guests, as it does for xl.
. /lab/lib.sh
start_xylemd
lab_kernel=/guest/vmlinuz
[ ! -e /guest/vmlinux ] || lab_kernel=/guest/vmlinux

echo "== a driver domain, made of what dom0 has"
root=/tmp/driver
mkdir -p $root/proc $root/sys $root/dev $root/tmp $root/run $root/var/lib/xen $root/var/log/xen
cat >$root/init <<'END'
#!/bin/sh
export PATH=/usr/bin:/usr/sbin HOME=/ LANG=C
say() { echo "DRIVER: $*" >/dev/console; }
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
echo 1 >/proc/sys/kernel/printk
mount -t tmpfs tmpfs /run
mkdir -p /run/xen /run/lock /var/lock
ln -sfn /run /var/run
for number in 0:stdin 1:stdout 2:stderr; do ln -sfn "/proc/self/fd/${number%:*}" "/dev/${number#*:}"; done
ln -sfn /proc/self/fd /dev/fd
modprobe -a xen-privcmd xenfs xen-evtchn xen-gntdev xen-gntalloc xen-blkfront xen-netfront loop xen-blkback bridge xen-netback || say "modules failed"
mount -t xenfs xenfs /proc/xen
ip link set dev lo up
brctl addbr inside
echo 0 >/sys/class/net/inside/bridge/forward_delay
ip addr add 10.0.0.1/24 dev inside
ip link set dev inside up
say "disk $(cat /sys/block/xvda/size)"
xl devd -F >/dev/console 2>&1 &
say ready
while :; do
    sleep 5
    say "ports $(ls /sys/class/net/inside/brif | tr '\n' ' ')"
done
END
chmod 755 $root/init
(
    # A folder comes before what is in it.
    cd / && { printf 'usr\netc\n'; find usr/bin usr/sbin usr/lib etc/xen bin sbin lib lib64; } | cpio -o -H newc 2>/dev/null
    cd $root && find . | cpio -o -H newc 2>/dev/null
) >/tmp/driver.cpio
check "its memory disk is made" [ "$(stat -c %s /tmp/driver.cpio)" -gt 10000000 ]
ls -l /tmp/driver.cpio
# driver_domain: starts it, by ours.
driver_domain() {
    cp /guest/disk.img "/tmp/storage.img"
    cat >/tmp/net.cfg <<END
name = "net"
type = "pv"
kernel = "$lab_kernel"
ramdisk = "/tmp/driver.cpio"
extra = "console=hvc0 quiet $FAST_BOOT rdinit=/init"
memory = 320
driver_domain = 1
disk = [ "/tmp/storage.img,raw,xvda,w" ]
END
    rm -f "$(console_log net)"
    check "the driver domain starts" xy create -q /tmp/net.cfg
    check "it is ready" console_wait net 'DRIVER: ready' 240 || tail -n 30 "$(console_log net)"
    grep DRIVER "$(console_log net)"
    net=$(xy domid net)
    # `xl devd` sets its watch.
    sleep 5
}
host_state >/results/state.before
driver_domain

# served NAME TYPE ADDRESS: a guest whose disk and interface are in the driver domain. Of type pv here: beside a busy PV guest
# QEMU's SVM now and then leaves Xen's registers in a PVH guest, which ends by a triple fault.
served() {
    linux_cfg "$1" "type = '$2'" "memory = 192" "extra = 'console=hvc0 quiet $FAST_BOOT xylem.ip=$3'" \
        "disk = ['/dev/xvda,raw,xvda,w,backend=net']" "vif = ['bridge=inside,backend=net']"
}
# path KIND DOMID DEVID: in the driver domain.
path() { echo "/local/domain/$net/backend/$1/$2/$3"; }
connected() { wait_for "[ \"\$(xenstore-read $(path "$1" "$2" "$3")/state)\" = 4 ]" 120; }
gone() { ! xenstore-exists "$(path "$1" "$2" "$3")"; }

echo "== a guest of it"
served web pv 10.0.0.7
check "create" xy create -q /tmp/web.cfg
web=$(xy domid web)
check "its disk works" console_wait web 'XYLEM-GUEST: disk=ok' 400
check "what it wrote is read again" guest_says web 'disk_written=written by a guest'
check "it reaches the driver domain" console_wait web 'XYLEM-GUEST: network=ok' 120 || {
    tail -n 40 "$(console_log net)" "$(console_log web)"
    xenstore-ls -fp | grep -E "^/(local/domain/($web|$net)|libxl)"
    exit 1
}
check "the driver domain has it on its bridge" console_wait net "DRIVER: ports vif$web.0" 60
check "dom0 has no interface of it" [ ! -e "/sys/class/net/vif$web.0" ]
check "no loop device is its" [ "$(losetup -a | wc -l)" = 1 ]
xy network-list web
xy block-list web
check "network-list names the driver domain" sh -c "xy network-list web | awk '\$1 == 0 { exit \$2 != $net }'"
check "block-list too" sh -c "xy block-list web | awk '\$1 == 51712 { exit \$2 != $net }'"

echo "== interfaces come and go"
check "attach" xy network-attach web bridge=inside,backend=net
check "the driver domain has it" connected vif "$web" 1 || tail -n 30 "$(console_log net)" "$(console_log web)"
check "detach" xy network-detach web 1
check "nothing of it is left there" gone vif "$web" 1
check "attach by its number" xy network-attach web bridge=inside,backend="$net"
check "the driver domain has it" connected vif "$web" 1 || tail -n 30 "$(console_log net)" "$(console_log web)"
kill_xylemd
start_xylemd
check "a daemon that starts anew detaches it" xy network-detach web 1
check "nothing of it is left there" gone vif "$web" 1

echo "== what is refused"
unikernel_cfg lost "vif = ['backend=nobody']"
check "no such domain" refused_with "vif\[0\]: backend=nobody: there is no such domain; start the driver domain first" xy create -q /tmp/lost.cfg
served other pv 10.0.0.8
check "its disk is in use" refused_with "/dev/xvda is in use by domain $web (vbd xvda)" xy create -q /tmp/other.cfg
unikernel_cfg bare "vif = ['backend=bare']"
xy create -q /tmp/bare.cfg 2>/tmp/bare.err
check "itself" grep -q 'backend=bare: there is no such domain' /tmp/bare.err

echo "== a reboot"
: >"$(console_log web)"
check "reboot" xy reboot web
check "its disk works again" console_wait web 'XYLEM-GUEST: disk=ok' 400
check "its network too" console_wait web 'XYLEM-GUEST: network=ok' 60
web=$(xy domid web)
check "shutdown" xy shutdown -w web
check "the backends are gone" gone vif "$web" 0
check "and the directories above" sh -c "! xenstore-exists /local/domain/$net/backend"

echo "== beside xl"
for who in ours xls; do
    unikernel_cfg $who "type = 'pv'" "vif = ['bridge=inside,mac=00:16:3e:00:00:31,backend=net']" \
        "disk = ['/dev/xvda,raw,xvda,r,backend=net']"
done
check "ours" xy create -q /tmp/ours.cfg
ours=$(xy domid ours)
check "xl's" xl create -q /tmp/xls.cfg
xls=$(xl domid xls)
# nodes DOMID: of its devices, without who it is. States, rings and features are the guest's and the backend's; xl copies some
# of the backend's nodes that nobody reads, and says of a disk that it is not virtio.
nodes() {
    {
        xenstore-ls -fp "/local/domain/$1/device"
        xenstore-ls -fp "/local/domain/$net/backend/vif/$1"
        xenstore-ls -fp "/local/domain/$net/backend/vbd/$1"
        xenstore-ls -fp "/libxl/$1/device/vif" | grep -v -E '/(online|state) ='
        xenstore-ls -fp "/libxl/$1/device/vbd" | grep -v -E '/(online|state|bootable) ='
    } | sed "s,\([/\"]\)$1\([/\"]\),\1N\2,g; s,n$1\b,nN,g; s,r$1\b,rN,g" | grep -v -E '/state = |/(feature|max|discard|multi|sectors|sector|info|physical|hotplug|specification|event-channel|ring-ref|tx-ring|rx-ring)|suspend' | sort
}
connected vif "$ours" 0
connected vif "$xls" 0
nodes "$ours" >/results/nodes.ours
nodes "$xls" >/results/nodes.xl
check "the same nodes" diff /results/nodes.ours /results/nodes.xl
check "ours ends" xy destroy ours
check "xl's can be taken over" xy adopt xls
check "an interface is attached" xy network-attach xls bridge=inside,backend=net
check "it ends as ours" xy destroy xls
check "nothing is left there" sh -c "! xenstore-exists /local/domain/$net/backend"

echo "== xl on a guest of ours"
unikernel_cfg mixed "type = 'pv'" "vif = ['bridge=inside,backend=net']"
check "ours" xy create -q /tmp/mixed.cfg
mixed=$(xy domid mixed)
connected vif "$mixed" 0
xl network-list mixed
check "xl lists it" sh -c "xl network-list mixed | awk '\$1 == 0 { exit \$2 != $net }'"
check "give it to xl" xy disown mixed
check "xl ends it" xl destroy mixed
check "nothing is left there" gone vif "$mixed" 0

echo "== a driver domain that ends first"
served web pv 10.0.0.7
check "create" xy create -q /tmp/web.cfg
web=$(xy domid web)
check "its network works" console_wait web 'XYLEM-GUEST: network=ok' 300
check "the driver domain is destroyed" xy destroy net
check "its guest is not" [ "$(xy list web | wc -l)" = 2 ]
driver_domain
check "an interface of the next one is attached" xy network-attach web bridge=inside,backend=net
check "it is connected" connected vif "$web" 1
check "the guest is destroyed" xy destroy web
check "the driver domain is destroyed" xy destroy net
check "nothing is left" same_state /results/state.before
