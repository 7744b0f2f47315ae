# xl makes a Linux guest with a disk and a vif; Xylem takes it over while it writes to its disk. As ours it gets a
# disk, starts again from the kernel that xl was told, and shuts down; nothing is left of either toolstack.
. /lab/lib.sh

# What the guest has written so far.
written() { grep -c 'XYLEM-GUEST: io=[0-9]' "$(console_log web)"; }

# goes_on: the guest writes on, and nothing that it read back while it was up was wrong.
goes_on() {
    before=$(written)
    wait_for "[ \$(written) -gt $((before + 1)) ]" 60 && no_failed_io "$(console_log web)"
}

# state_of NAME: as Xylem sees it.
state_of() { xy vm-list | awk -v name="$1" '$1 == name { print $4 }'; }

cp /guest/disk.img /tmp/web.img
cp /guest/disk.img /tmp/more.img
xl_linux_cfg web /tmp/web.img
unikernel_cfg uni "type = 'pv'" "vif = ['bridge=xenbr0']"

start_xylemd
# What the first VM ever leaves in the store is there already.
xl create -q /tmp/uni.cfg && xl destroy uni
xy create -q /tmp/uni.cfg && xy destroy uni
host_state >/tmp/state.before
ls /var/lib/xen >/tmp/kept.before

check "xl create web" xl create -q /tmp/web.cfg
check "web is up" console_wait web 'XYLEM-GUEST: ready' 240
domid=$(xl domid web)
check "xl's process waits for its end" [ -n "$(pidof xl)" ]
check "xl keeps what it was made from" [ -e /var/lib/xen/userdata-d."$domid".*.libxl-json ]
check "it is xl's" refused_with 'not managed by Xylem' xy destroy web
start=$(now)
check "xy adopt web" xy adopt web
echo "adopt took $(seconds_since "$start") s"
check "xl's process is gone" wait_for '[ -z "$(pidof xl)" ]' 10
check "xl keeps its configuration, as of any VM of ours" [ -e /var/lib/xen/userdata-d."$domid".*.libxl-json ]
check "and nothing else" sh -c "[ \$(ls /var/lib/xen | wc -l) = \$((\$(wc -l </tmp/kept.before) + 1)) ]"
check "xl changes it" xl mem-max web 130
check "web writes on" goes_on
check "it is the same domain" [ "$(xy domid web)" = "$domid" ]
check "it runs" [ "$(state_of web)" = running ]
# Busybox's losetup prints the tag in place of the file.
check "its loop device has our name" sh -c 'losetup -a | grep -q xylem/'
xy list
xy block-list web
xy network-list web
check "its disk is connected" sh -c "xy block-list web | awk '\$1 == 51712 && \$4 == 4 { good = 1 } END { exit !good }'"
check "a second time it is known" xy adopt web
check "xl still lists it" sh -c 'xl list | grep -q "^web "'

kill_xylemd
start_xylemd
check "another daemon knows it" [ "$(state_of web)" = running ]
check "web writes on" goes_on
check "a disk is attached" xy block-attach web format=raw,vdev=xvdb,access=r,target=/tmp/more.img
check "and detached" xy block-detach web xvdb

check "xy reboot web" xy reboot -w web
check "it runs in another domain" wait_for '[ "$(xy domid web)" != "'"$domid"'" ] && [ "$(state_of web)" = running ]' 60
check "it boots from its kernel" wait_for '[ "$(grep -c "XYLEM-GUEST: ready" "$(console_log web)")" = 2 ]' 240
check "web writes on" goes_on
check "xy shutdown -ww web" xy shutdown -ww web
check "nothing is left of it" same_state /tmp/state.before
check "nor of what xl kept" sh -c 'ls /var/lib/xen | cmp - /tmp/kept.before'

check "xl create uni" xl create -q /tmp/uni.cfg
rm /var/lib/xen/userdata-d.*.libxl-json
check "without its kernel it is not taken" refused_with '--config FILE' xy adopt uni
check "xl's process continues" sh -c 'grep -q "^State:.*[SR]" /proc/$(pidof xl)/status'
check "with its file it is" xy adopt --config=/tmp/uni.cfg uni
check "it is destroyed" xy destroy uni
check "nothing is left of it either" same_state /tmp/state.before
