# Hotplug scripts, those of Xen's packages and others: they are run as libxl runs them, what they say reaches the operator, and
# neither they nor a killed daemon leave anything.
. /lab/lib.sh
start_xylemd
host_state >/results/state.before
scripts=/etc/xen/scripts
backend() { echo "/local/domain/0/backend/$1"; }
# script NAME: one of our own, from the standard input.
script() { cat >"$scripts/$1" && chmod 755 "$scripts/$1"; }
# connected KIND DOMID DEVID
connected() { wait_for "[ \"\$(xenstore-read $(backend "$1/$2/$3")/state)\" = 4 ]" 120; }

echo "== Xen's own vif-bridge, under another name"
cp $scripts/vif-bridge $scripts/vif-mine
unikernel_cfg wired "type = 'pvh'" "vif = ['bridge=xenbr0,script=vif-mine,vifname=wired0']"
check "create" xy create -q /tmp/wired.cfg
domid=$(xy domid wired)
check "the guest connects" connected vif "$domid" 0
check "the script has put it on the bridge" test -e /sys/class/net/xenbr0/brif/wired0
check "libxl knows the script" grep -q '"script": *"vif-mine"' /var/lib/xen/userdata-d."$domid".*.libxl-json
check "attach another" xy network-attach wired bridge=xenbr0,script=vif-mine
check "it is connected" connected vif "$domid" 1
check "it is on the bridge" test -e "/sys/class/net/xenbr0/brif/vif$domid.1"
check "detach it" xy network-detach wired 1
check "reboot" xy reboot -w wired
check "the next domain's is on the bridge" wait_for 'test -e /sys/class/net/xenbr0/brif/wired0' 60
check "destroy" xy destroy wired
# Xen's script takes the interface's name for the domain's number and the device's, and writes the MTU there.
xenstore-rm /local/domain/wired0
check "nothing is left" same_state /results/state.before

echo "== what a script is told"
script vif-told <<'END'
#!/bin/sh
{ echo "$@"; env | grep -E '^(script|XENBUS_.*|netdev|vif|INTERFACE)=' | sort; } >>/tmp/told
xenstore-write "$XENBUS_PATH/hotplug-status" connected
END
unikernel_cfg told "type = 'pv'" "vif = ['script=vif-told,gatewaydev=eth9,bridge=ovsbr0.10:20']"
check "create" xy create -q /tmp/told.cfg
domid=$(xy domid told)
check "destroy" xy destroy told
cat >/tmp/told.expected <<END
online type_if=vif
XENBUS_BASE_PATH=backend
XENBUS_PATH=backend/vif/$domid/0
XENBUS_TYPE=vif
netdev=eth9
script=/etc/xen/scripts/vif-told
vif=vif$domid.0
offline type_if=vif
XENBUS_BASE_PATH=backend
XENBUS_PATH=backend/vif/$domid/0
XENBUS_TYPE=vif
netdev=eth9
script=/etc/xen/scripts/vif-told
vif=vif$domid.0
END
check "it was told what libxl tells" diff /tmp/told.expected /tmp/told

echo "== scripts that fail"
# Under its own name it would not be run.
cp $scripts/vif-openvswitch $scripts/vif-copy
unikernel_cfg failing "type = 'pv'" "vif = ['script=vif-copy']"
check "Xen's own says why" refused_with 'vif-copy online failed with status 1: Unable to find ovs-vsctl tool' xy create -q /tmp/failing.cfg
script vif-rude <<'END'
#!/bin/sh
echo "no such switch" >&2
exit 3
END
unikernel_cfg rude "type = 'pv'" "vif = ['script=vif-rude']"
check "its own words are told" refused_with 'vif-rude online failed with status 3: no such switch' xy create -q /tmp/rude.cfg
unikernel_cfg missing "type = 'pv'" "vif = ['script=vif-missing']"
check "a missing one is told at once" refused_with 'no hotplug script /etc/xen/scripts/vif-missing' xy create -q /tmp/missing.cfg
check "nothing is left" same_state /results/state.before

echo "== a script that hangs"
script vif-hangs <<'END'
#!/bin/sh
case $1 in online) sleep 1000 & echo $! >/tmp/sleeper; wait ;; esac
END
unikernel_cfg hangs "type = 'pv'" "vif = ['script=vif-hangs']"
rm -f /tmp/sleeper
xy create -q /tmp/hangs.cfg 2>/tmp/hangs.err &
waiting=$!
check "it runs" wait_for 'test -s /tmp/sleeper' 30
unikernel_cfg other "type = 'pv'" "vif = ['']"
check "another VM starts meanwhile" xy create -q /tmp/other.cfg
check "and ends" xy destroy other
wait "$waiting"
check "it is told" grep -q 'vif-hangs online did not end within 40 s' /tmp/hangs.err
check "its child was killed too" wait_for "! kill -0 $(cat /tmp/sleeper)" 5
check "nothing is left" same_state /results/state.before

echo "== a daemon that is killed while a script runs"
script vif-slow <<'END'
#!/bin/sh
echo "$1" >>/tmp/slow
case $1 in
    online)
        [ ! -e /tmp/connected ] || exit 1
        touch /tmp/connected
        [ -e /tmp/quick ] || sleep 1000
        xenstore-write "$XENBUS_PATH/hotplug-status" connected
        ;;
    offline) rm -f /tmp/connected ;;
esac
END
rm -f /tmp/slow /tmp/quick /tmp/connected
unikernel_cfg slow "type = 'pv'" "vif = ['script=vif-slow']"
xy create -q /tmp/slow.cfg >/dev/null 2>&1 &
waiting=$!
check "it runs" wait_for 'test -e /tmp/connected' 30
kill_xylemd
wait "$waiting" 2>/dev/null
touch /tmp/quick
start_xylemd
check "the script of before is gone" wait_for '[ -z "$(pids_of "[v]if-slow")" ]' 10
check "the next daemon connects it" wait_for '[ "$(xy list slow | wc -l)" = 2 ] && [ "$(tail -n 1 /tmp/slow)" = online ]' 30
check "after it was disconnected" [ "$(tr '\n' ' ' </tmp/slow)" = "online offline online " ]
check "destroy" xy destroy slow
check "it is disconnected" [ ! -e /tmp/connected ]
check "no run is left" [ -z "$(ls /run/xylem/scripts)" ]
check "nothing is left" same_state /results/state.before

echo "== a disk of a script of our own"
truncate -s 16M /script-disk.raw
script block-ours <<'END'
#!/bin/bash
# Xen's own functions, as its documents have it.
dir=$(dirname "$0")
. "$dir/block-common.sh"
name=$(xenstore_read "$XENBUS_PATH/params")
case "$command" in
    add)
        [ "$name" != nothing ] || fatal "there is no disk $name"
        dev=$(losetup --find --show "/$name.raw") || fatal "losetup failed"
        echo "$dev" >"/tmp/$name.loop"
        write_dev "$dev"
        ;;
    remove) losetup -d "$(cat "/tmp/$name.loop")" ;;
esac
exit 0
END
unikernel_cfg disk "type = 'pv'" "disk = ['vdev=xvda,script=block-ours,target=script-disk']"
check "create" xy create -q /tmp/disk.cfg
domid=$(xy domid disk)
check "the guest connects" connected vbd "$domid" 51712
check "libxl knows the script" grep -q '"script": *"block-ours"' /var/lib/xen/userdata-d."$domid".*.libxl-json
check "reboot" xy reboot -w disk
domid=$(xy domid disk)
check "the next domain connects" connected vbd "$domid" 51712
truncate -s 16M /script-more.raw
check "attach another" xy block-attach disk vdev=xvdb,script=block-ours,target=script-more
check "the guest connects it too" connected vbd "$domid" 51728
check "detach it" xy block-detach disk xvdb
check "its script was run" wait_for '! losetup -a | grep -q script-more' 10
check "what is not there is told" refused_with 'disk xvdb: the script /etc/xen/scripts/block-ours add failed with status 1: there is no disk nothing' xy block-attach disk vdev=xvdb,script=block-ours,target=nothing
check "destroy" xy destroy disk
check "its script was run too" wait_for '! losetup -a | grep -q script-disk' 10
check "nothing is left" same_state /results/state.before

echo "== what xl made comes with its script"
cp /tmp/disk.cfg /tmp/foreign.cfg
sed -i "s/^name = .*/name = 'foreign'/" /tmp/foreign.cfg
check "xl creates it" xl create -q /tmp/foreign.cfg
domid=$(xl domid foreign)
check "the guest connects" connected vbd "$domid" 51712
check "adopt" xy adopt foreign
check "destroy" xy destroy foreign
check "its script was run" wait_for '! losetup -a | grep -q script-disk' 10
check "nothing is left" same_state /results/state.before
