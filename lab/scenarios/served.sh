# lab-addition: hvm
# Devices that QEMU serves to PV and PVH guests: channels, a screen, a keyboard and a folder of dom0. They work, QEMU has
# few rights, and nothing is left of them.
. /lab/lib.sh

qemus() { pidof xen-qemu-system-i386; }
same() { same_state /results/state.before && [ -z "$(qemus)" ]; }
# ask_pty TTY WORD: what the guest answers on a channel.
ask_pty() {
    exec 4<>"$1"
    stty raw -echo <&4
    echo "$2" >&4
    timeout 10 head -n 1 <&4
    exec 4>&-
}

start_xylemd
host_state >/results/state.before
mkdir -p /tmp/shared
echo "of dom0" >/tmp/shared/hello.txt

echo "== channels"
linux_cfg one "type = 'pv'" "memory = 160" \
    "extra = 'console=hvc0 quiet $FAST_BOOT xylem.channel=1'" \
    "channel = [ 'connection=pty,name=org.xylem.first', 'connection=socket,path=/tmp/one.socket,name=second' ]"
xy plan create /tmp/one.cfg
start=$(now)
check "create" xy create -q /tmp/one.cfg || cat /var/log/xen/qemu-dm-one.log
echo "created after $(seconds_since "$start") s"
xenstore-ls -fp >/results/state.channels
model=$(qemus)
check "one QEMU runs" [ "$(echo "$model" | wc -w)" = 1 ]
tr '\0' ' ' <"/proc/$model/cmdline"; echo
check "as a user of its own" grep -q '^Uid:.19000000' "/proc/$model/status"
check "without capabilities" grep -q '^CapEff:.0000000000000000' "/proc/$model/status"
check "with a filter of system calls" confined "$model" /xylem/xylem-model-1
check "it sees Xen's devices only" [ "$(cd "/proc/$model/root/" && find . | sort | tr '\n' ' ')" = ". ./dev ./dev/xen ./dev/xen/evtchn ./dev/xen/gntdev " ]
check "nobody else sees them there" [ -z "$(ls /run/xylem/empty)" ]
check "the guest is ready" console_wait one "XYLEM-GUEST: channel=" 180
check "and has its channel" guest_says one channel=open
xy channel-list one
xl channel-list one
xy channel-list one >/tmp/ours; xl channel-list one >/tmp/theirs
check "channel-list is xl's" cmp /tmp/ours /tmp/theirs
check "as JSON, too" eval 'xy channel-list --json one | grep org.xylem.first'
tty=$(xenstore-read /local/domain/1/device/console/1/tty)
check "the guest answers by its channel" eval 'ask_pty "$tty" hello | grep heard=hello'
check "the socket is there" [ -S /tmp/one.socket ]
xl list -l one >/tmp/list.json
check "libxl reads them" eval 'grep -A3 channels /tmp/list.json | grep -q devid'

echo "== another daemon finds QEMU; a reboot has another one"
kill_xylemd
start_xylemd
check "it still runs" [ "$(qemus)" = "$model" ]
check "reboot" xy reboot -w one
check "the guest is ready again" wait_for '[ "$(grep -c channel=open "$(console_log one)")" = 2 ]' 180
check "with another QEMU" [ "$(qemus)" != "$model" ]
tty=$(xenstore-read /local/domain/2/device/console/1/tty)
check "the guest answers" eval 'ask_pty "$tty" again | grep heard=again'

echo "== a saved guest has its channel when it is restored"
check "save" xy save one /tmp/one.save
check "nothing is left" same
check "restore" xy restore /tmp/one.save
check "the guest opens its channel again" wait_for '[ "$(grep -c channel=open "$(console_log one)")" = 3 ]' 60
tty=$(xenstore-read /local/domain/3/device/console/1/tty)
check "the guest answers" eval 'ask_pty "$tty" restored | grep heard=restored'

echo "== QEMU dies; its guest goes on"
kill -9 "$(qemus)"
check "the daemon says so" wait_for 'grep -q "one: its device model .*what it served is gone" /results/xylemd.log' 30
check "the guest runs" xy domid one
check "destroy" xy destroy one
check "nothing is left" same

echo "== a screen, a keyboard and a folder"
linux_cfg two "type = 'pvh'" "memory = 160" "extra = 'console=hvc0 quiet $FAST_BOOT xylem.share=share'" \
    "vfb = [ 'vnc=1' ]" "vkb = [ 'backend-type=qemu,unique-id=second' ]" \
    "p9 = [ 'tag=share,path=/tmp/shared,security_model=none' ]"
check "create" xy create -q /tmp/two.cfg || cat /var/log/xen/qemu-dm-two.log
tr '\0' ' ' <"/proc/$(qemus)/cmdline"; echo
xenstore-ls -fp >/results/state.screen
check "where the screen is, is told" [ "$(xy vncviewer -p two)" = 127.0.0.1:4 ]
check "the screen answers" eval '(sleep 1) | nc 127.0.0.1 5904 | head -c 3 | grep -q RFB'
check "the guest is ready" console_wait two "XYLEM-GUEST: share" 180
check "the guest sees a screen" guest_says two screen=
check "it reads the folder" console_wait two "share_text=of dom0" 30
check "and writes to it" wait_for '[ "$(cat /tmp/shared/guest.txt)" = "written by a guest" ]' 30
grep XYLEM "$(console_log two)" | tail -n 6
xy vkb-list two
xl vkb-list two
xy vkb-list two >/tmp/ours; xl vkb-list two >/tmp/theirs
check "vkb-list is xl's" cmp /tmp/ours /tmp/theirs
check "a keyboard is added" xy vkb-attach two backend-type=qemu unique-id=third
check "the guest takes it" wait_for '[ "$(xenstore-read /local/domain/4/device/vkbd/2/state)" = 4 ]' 30
check "the one before it goes" xy vkb-detach two 1
xy vkb-list two >/tmp/ours; xl vkb-list two >/tmp/theirs; cat /tmp/ours
check "vkb-list is xl's without it" cmp /tmp/ours /tmp/theirs
check "the other one goes" xy vkb-detach two 2
check "and is gone" eval '! xy vkb-list two | grep third'
check "destroy" xy destroy two
rm -f /tmp/shared/guest.txt
check "nothing is left" same

echo "== what cannot be"
linux_cfg bad "memory = 64" "p9 = [ 'tag=x,path=/tmp/nowhere,security_model=none' ]"
check "a folder that is missing" refused_with 'bad.cfg:5: p9.0.: /tmp/nowhere' xy create -q /tmp/bad.cfg
linux_cfg bad "memory = 64" "channel = [ 'connection=pty,name=x' ]" "device_model_override = '/nowhere'"
check "a QEMU that is missing" refused_with '/nowhere' xy create -q /tmp/bad.cfg
linux_cfg bad "memory = 128" "channel = [ 'connection=socket,path=/nowhere/x,name=x' ]"
check "a socket that cannot be" refused_with 'nowhere' xy create -q /tmp/bad.cfg
check "nothing is left" same
