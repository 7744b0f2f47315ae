# Xylem's own store and toolstack on a real Xen: every kind of guest it can make, seen working, and
# nothing left of any of them. Also one guest by xl, a real client of our store.
. /lab/lib.sh
start_xylemd
host_state >/results/state.before

echo "== Linux, PV, 2 vCPUs, disk and network"
cp /guest/disk.img /tmp/disk1.img
linux_cfg lin2 "type = 'pv'" "memory = 160" "vcpus = 2" "extra = 'console=hvc0 quiet $FAST_BOOT xylem.ip=10.0.0.5'" \
    "disk = ['/tmp/disk1.img,raw,xvda,w']" "vif = ['bridge=xenbr0']"
check "create lin2" xy create -q /tmp/lin2.cfg
check "lin2 is up" console_wait lin2 'XYLEM-GUEST: ready' 400
check "lin2 has two vCPUs" guest_says lin2 vcpus=2
check "lin2 read and wrote its disk through blkfront" guest_says lin2 disk=ok
check "lin2 pinged dom0 through netfront" guest_says lin2 network=ok
check "dom0 pings lin2" ping -c 1 -W 5 10.0.0.5
check "xl list names lin2" sh -c 'xl list | grep -q ^lin2'
check "xy list says what xl list says" sh -c '
    xl list | awk "{ print \$1, \$2, \$3, \$4 }" >/tmp/xl.rows
    xy list | awk "{ print \$1, \$2, \$3, \$4 }" >/tmp/xy.rows
    diff /tmp/xl.rows /tmp/xy.rows'
check "xenstore-ls shows lin2" sh -c 'xenstore-ls /local/domain | grep -q "name = \"lin2\""'
check "both ends of the disk are connected" sh -c '
    xy block-list lin2 | tee /results/block-list | awk "NR == 2 && \$4 == 4 { good = 1 } END { exit !good }"'
check "both ends of the vif are connected" sh -c '
    xy network-list lin2 | tee /results/network-list | awk "NR == 2 && \$5 == 4 { good = 1 } END { exit !good }"'
xy list
xy list -l >/results/list.json
store_cost() { xy counters --json | tr -d ' \n' | grep -o '"store_[a-z_]*":[0-9]*\|"transactions":[0-9]*'; }
store_cost >/tmp/cost.before
for look in "list" "list lin2" "info" "dominfo lin2" "vm-list" "vcpu-list lin2"; do
    check "xy $look" xy $look
done
store_cost >/tmp/cost.after
check "looks ask nothing of the store" sh -c '[ -s /tmp/cost.before ] && diff /tmp/cost.before /tmp/cost.after'

echo "== Linux, PV, 1 vCPU: pause, unpause, reboot, shutdown"
linux_cfg lin1 "type = 'pv'" "memory = 128" "extra = 'console=hvc0 quiet $FAST_BOOT'"
check "create lin1" xy create -q /tmp/lin1.cfg
check "lin1 is up" console_wait lin1 'XYLEM-GUEST: ready' 400
check "lin1 has one vCPU" guest_says lin1 vcpus=1
check "pause" xy pause lin1
check "lin1 is paused" sh -c 'xy list lin1 | awk "NR == 2 && \$5 ~ /p/ { good = 1 } END { exit !good }"'
check "unpause" xy unpause lin1
before=$(xy domid lin1)
check "reboot lin1" xy reboot lin1
check "lin1 came back as another domain" wait_for "[ \"\$(xy domid lin1)\" -gt $before ]" 200
check "lin1 is up again" wait_for "[ \"\$(grep -c 'XYLEM-GUEST: ready' $(console_log lin1))\" -ge 2 ]" 400

echo "== unikernel, PV and PVH"
cp /guest/disk.img /tmp/disk2.img
for type in pv pvh; do
    unikernel_cfg "uni-$type" "type = '$type'" "disk = ['/tmp/disk2.img,raw,xvda,r']" "vif = ['bridge=xenbr0']"
    check "create uni-$type" sh -c "xy create --json '/tmp/uni-$type.cfg' >/results/uni-$type.json"
    check "it took at most two transactions" grep -q '"transactions": *[012],' "/results/uni-$type.json"
    check "uni-$type says hello" console_wait "uni-$type" "XYLEM-UNIKERNEL: .*mode=$type" 200
    check "uni-$type reads its disk" console_wait "uni-$type" 'XYLEM-UNIKERNEL: .*vbd 51712 .*first=' 200
    check "uni-$type blocks when idle" wait_for \
        "xy list uni-$type | awk 'NR == 2 && \$5 ~ /b/ { good = 1 } END { exit !good }'" 100
done

echo "== Linux, PVH"
linux_cfg linh "type = 'pvh'" "memory = 160" "vcpus = 2" "tsc_mode = 'native'" "extra = 'console=hvc0 quiet $FAST_BOOT xylem.ip=10.0.0.6'" \
    "disk = ['/tmp/disk2.img,raw,xvda,r']" "vif = ['bridge=xenbr0']"
check "create linh" xy create -q /tmp/linh.cfg
check "linh is up" console_wait linh 'XYLEM-GUEST: ready' 400
check "linh has two vCPUs" guest_says linh vcpus=2
check "linh read its disk" guest_says linh disk=ok
check "linh pinged dom0" guest_says linh network=ok

echo "== clean ends"
xy list
check "shutdown -w of lin2" xy shutdown -w lin2
check "shutdown -w of all others" xy shutdown -a -w
check "nothing is left but dom0" wait_for '[ "$(xy list | wc -l)" = 2 ]' 10
check "dom0 is as before" same_state /results/state.before

echo "== a guest by xl on our store"
linux_cfg xlguest "type = 'pv'" "memory = 128" "extra = 'console=hvc0 quiet $FAST_BOOT'" "disk = ['/tmp/disk3.img,raw,xvda,w']"
cp /guest/disk.img /tmp/disk3.img
check "xl create" xl create -q /tmp/xlguest.cfg
check "xlguest is up" console_wait xlguest 'XYLEM-GUEST: ready' 400
check "xlguest read its disk" guest_says xlguest disk=ok
check "xy list shows xl's guest" sh -c 'xy list | grep -q ^xlguest'
check "xy does not touch xl's guest" sh -c '! xy destroy xlguest'
check "xl destroy" xl destroy xlguest
check "xl's guest is gone" wait_for '! xl list | grep -q ^xlguest' 20
