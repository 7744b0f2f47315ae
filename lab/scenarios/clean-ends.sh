# A guest that shuts down closes its devices itself: nothing waits for what has happened already.
. /lab/lib.sh
start_xylemd
host_state >/results/state.before
cp /guest/disk.img /tmp/disk1.img
cp /guest/disk.img /tmp/disk2.img
for type in pv pvh; do
    unikernel_cfg "uni-$type" "type = '$type'" "vif = ['bridge=xenbr0']"
done
echo "disk = ['/tmp/disk1.img,raw,xvda,r']" >>/tmp/uni-pv.cfg
echo "disk = ['/tmp/disk2.img,raw,xvda,r']" >>/tmp/uni-pvh.cfg
for type in pv pvh; do
    check "create uni-$type" xy create -q "/tmp/uni-$type.cfg"
    check "uni-$type has its disk" console_wait "uni-$type" 'vbd 51712' 200
    check "uni-$type has its network" console_wait "uni-$type" 'vif 0 connected' 200
    # A backend that is just connecting when it is told to close may not say that it has closed: only
    # the clean shutdown is held to it.
    notes=$(grep -c 'went on' /results/xylemd.log)
    check "shutdown -w of uni-$type" xy shutdown -w "uni-$type"
    check "its backends were waited for" [ "$(grep -c 'went on' /results/xylemd.log)" = "$notes" ]
    check "dom0 is as before" same_state /results/state.before
    check "create uni-$type again" xy create -q "/tmp/uni-$type.cfg"
    check "destroy uni-$type as it starts" xy destroy "uni-$type"
    check "dom0 is as before" same_state /results/state.before
done
