# The store daemon serves real guests after it gave up root: their rings, event channels and the list of domains
# are reached through what was open before.
. /lab/lib.sh
kill -9 "$(store_pid)"
xylem-xenstored --user 65534:65534 >/results/xylem-xenstored.log 2>&1 </dev/null &
check "the store is served again" wait_for '[ -S /run/xenstored/socket ] && xenstore-read -s /local/domain/0/name' 20
# Its connection ended with the daemon before.
killall xenconsoled
wait_for '! pidof xenconsoled' 5
xenconsoled --log=all --log-dir=/var/log/xen/console --pid-file=/run/xenconsoled.pid
store=$(store_pid)
check "not by root" grep -q '^Uid:.65534.65534.65534.65534$' "/proc/$store/status"
check "without capabilities" grep -q '^CapBnd:.0000000000000000$' "/proc/$store/status"
check "with a filter of system calls" grep -q '^Seccomp:.2$' "/proc/$store/status"
start_xylemd
host_state >/results/state.before
cp /guest/disk.img /tmp/disk1.img
for type in pv pvh; do
    unikernel_cfg "uni-$type" "type = '$type'" "vif = ['bridge=xenbr0']" "disk = ['/tmp/disk1.img,raw,xvda,r']"
    check "create uni-$type" xy create -q "/tmp/uni-$type.cfg"
    check "uni-$type has its disk" console_wait "uni-$type" 'vbd 51712' 30
    check "uni-$type has its network" console_wait "uni-$type" 'vif 0 connected' 30
    check "shutdown -w of uni-$type" xy shutdown -w "uni-$type"
    check "dom0 is as before" wait_for 'same_state /results/state.before' 5
    check "create uni-$type again" xy create -q "/tmp/uni-$type.cfg"
    check "its death is seen" xy destroy "uni-$type"
    check "dom0 is as before" wait_for 'same_state /results/state.before' 5
done
check "the daemon is the same" [ "$(store_pid)" = "$store" ]
check "nothing was refused to it" sh -c '! grep -i "not permitted\|denied" /results/xylem-xenstored.log'
