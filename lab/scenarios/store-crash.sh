# The store daemon gets SIGKILL, thirty times: twenty times with guests that run, one of which writes to
# its disk all the time, then while VMs are made and destroyed. Only dom0's daemons, whose sockets close, may notice.
. /lab/lib.sh
start_xylemd

# crash: ends the store as nothing else can, and starts it again as a service manager would.
# xenconsoled uses libxenstore, which does not connect again: it is started again, too.
crash() {
    kill -9 "$(store_pid)"
    xylem-xenstored >>/var/log/xen/xylem-xenstored.log 2>&1 </dev/null ||
        fail "the store does not start: $(tail -n 3 /var/log/xen/xylem-xenstored.log)"
    crashes=$((crashes + 1))
}
crashes=0

consoles() {
    kill "$(pidof xenconsoled)" 2>/dev/null
    wait_for '! pidof xenconsoled' 5
    xenconsoled --log=all --log-dir=/var/log/xen/console --pid-file=/run/xenconsoled.pid
}

# What a restart must not change; the store's own listing with permissions.
store() { xenstore-ls -fp /; }

host_state >/results/state.before

echo "== guests that run"
cp /guest/disk.img /tmp/disk1.img
linux_cfg lin1 "type = 'pv'" "memory = 128" "extra = 'console=hvc0 quiet $FAST_BOOT xylem.ip=10.0.0.5 xylem.io=1'" \
    "disk = ['/tmp/disk1.img,raw,xvda,w']" "vif = ['bridge=xenbr0']"
check "create lin1" xy create -q /tmp/lin1.cfg
check "lin1 is up" console_wait lin1 'XYLEM-GUEST: ready' 180
cp /guest/disk.img /tmp/disk2.img
unikernel_cfg uni1 "type = 'pvh'" "disk = ['/tmp/disk2.img,raw,xvda,r']" "vif = ['bridge=xenbr0']"
check "create uni1" xy create -q /tmp/uni1.cfg
check "uni1 reads its disk" console_wait uni1 'XYLEM-UNIKERNEL: .*vbd 51712 .*first=' 60
store >/results/store.before

# What lin1 has written so far, and whether it still writes.
written() { grep -c 'XYLEM-GUEST: io=[0-9]' "$(console_log lin1)"; }
goes_on() {
    before=$(written)
    wait_for "[ \$(written) -gt $((before + 2)) ]" 60 && ! grep -q 'io=failed' "$(console_log lin1)"
}

echo "== twenty kills with guests that run"
while [ $crashes -lt 20 ]; do
    crash
    store >/results/store.after
    diff /results/store.before /results/store.after >/tmp/store.diff ||
        { cat /tmp/store.diff; fail "the store is another after $crashes kills"; }
done
echo "ok: the store is as it was after each of $crashes kills, $(wc -l </results/store.after) nodes"
check "dom0 pings lin1" ping -c 1 -W 5 10.0.0.5
check "xylemd continues" wait_for 'xy list | grep -q ^lin1' 20
consoles
check "lin1 writes on" goes_on

echo "== kills while VMs are made and destroyed"
for number in 1 2 3; do
    unikernel_cfg "new$number" "type = 'pvh'" "disk = ['/tmp/disk2.img,raw,xvda,r']" "vif = ['bridge=xenbr0']"
    { xy create -q "/tmp/new$number.cfg"; echo $? >/tmp/create.status; } >/tmp/create.output 2>&1 &
    sleep 0.3
    crash
    sleep 0.7
    crash
    wait $!
    check "new$number was made" grep -qx 0 /tmp/create.status || cat /tmp/create.output
    check "new$number is there" sh -c "xl list | grep -q ^new$number"
    check "its frontends are connected" wait_for "xy block-list new$number | awk 'NR == 2 && \$4 == 4 { good = 1 } END { exit !good }'" 30
done
for number in 1 2 3; do
    { xy destroy "new$number"; echo $? >/tmp/destroy.status; } >/tmp/destroy.output 2>&1 &
    sleep 0.1
    crash
    wait $!
    check "new$number was destroyed" grep -qx 0 /tmp/destroy.status || cat /tmp/destroy.output
done
consoles

echo "== everything still works"
crash
linux_cfg lin2 "type = 'pv'" "memory = 128" "extra = 'console=hvc0 quiet $FAST_BOOT'"
consoles
check "create lin2" xy create -q /tmp/lin2.cfg
check "lin2 is up" console_wait lin2 'XYLEM-GUEST: ready' 180
check "lin1 writes on" goes_on
echo "$crashes kills; lin1 wrote $(written) times"
check "lin1 and lin2 hear that they shall shut down" xy shutdown -a -w
check "uni1 is destroyed" sh -c 'xy list | grep -q ^uni1 || exit 0; xy destroy uni1'
check "dom0 is as before" same_state /results/state.before
ls -l /run/xenstored >/results/rundir
