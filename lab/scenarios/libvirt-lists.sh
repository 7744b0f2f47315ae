# libvirt on our store: it makes VMs, lists them a thousand times, and takes them down.
# lab-addition: libvirt
#
# What a list costs the store is shown; libvirt 9 asks Xen alone.
. /lab/lib.sh

# Requests of the store's clients so far, and transactions begun.
requests() { xy store stats | awk '/^requests total/ { print $3 }'; }
transactions() { xy store stats | awk '/^transactions started/ { print $3 }'; }

# The emulated CPU has no VME, without which libvirt knows no CPU model.
for file in /usr/share/libvirt/cpu_map/x86_*.xml; do
    [ "${file##*/}" = x86_features.xml ] || sed -i "/<feature name='vme'/d" "$file"
done
mkdir -p /etc/libvirt /run/libvirt /var/lib/libvirt /var/log/libvirt /var/cache/libvirt
echo 'root:x:0:0::/root:/bin/sh' >/etc/passwd
echo 'root:x:0:' >/etc/group
: >/etc/libvirt/libxl.conf
cat >/etc/libvirt/libvirtd.conf <<CONFIG
auth_unix_ro = "none"
auth_unix_rw = "none"
host_uuid = "00000000-0000-4000-8000-000000000001"
CONFIG
host_state >/results/state.before
libvirtd -f /etc/libvirt/libvirtd.conf >/results/libvirtd.log 2>&1 </dev/null &
daemon=$!
wait_for "[ -S /run/libvirt/libvirt-sock ] || ! kill -0 $daemon" 120
virsh="virsh -q -c xen:///system"
wait_for "$virsh version || ! kill -0 $daemon" 120
check "virsh speaks to Xen" $virsh version || { cat /results/libvirtd.log; exit 1; }
cp /guest/disk.img /tmp/disk.img
for number in 1 2 3 4 5; do
    cat >/tmp/vm.xml <<CONFIG
<domain type='xen'><name>vm$number</name><memory unit='MiB'>8</memory><vcpu>1</vcpu>
<os><type machine='xenpv'>linux</type><kernel>/guest/unikernel</kernel></os>
<devices>
  <disk type='file' device='disk'><source file='/tmp/disk.img'/><target dev='xvda' bus='xen'/><readonly/></disk>
  <interface type='bridge'><source bridge='xenbr0'/></interface>
</devices></domain>
CONFIG
    check "virsh create vm$number" $virsh create /tmp/vm.xml || exit 1
    check "it has its devices" console_wait "vm$number" 'vif 0 connected' 60
done
check "virsh lists all" test "$($virsh list | grep -c ' vm[1-5] .*running')" = 5

before=$(requests) began=$(transactions) start=$(now)
count=0
while [ $count -lt 1000 ]; do
    count=$((count + 1))
    echo list
done | $virsh >/results/lists 2>&1
took=$(seconds_since "$start")
check "1000 lists named 5 VMs each" test "$(grep -c ' vm[1-5] .*running' /results/lists)" = 5000
echo "1000 lists in $took s: $(($(requests) - before)) requests to the store, $(($(transactions) - began)) transactions"
before=$(requests) began=$(transactions) start=$(now)
for count in 1 2 3 4 5 6 7 8 9 10; do
    $virsh list >/dev/null || fail "virsh list, time $count"
done
echo "10 processes that list in $(seconds_since "$start") s: $(($(requests) - before)) requests to the store, $(($(transactions) - began)) transactions"
before=$(requests) began=$(transactions)
for number in 1 2 3 4 5; do
    $virsh dominfo "vm$number" >>/results/dominfo || fail "virsh dominfo vm$number"
done
echo "5 times dominfo: $(($(requests) - before)) requests to the store, $(($(transactions) - began)) transactions"
for number in 1 2 3 4 5; do
    check "virsh destroy vm$number" $virsh destroy "vm$number"
done
check "the store has nothing of them" wait_for '! xenstore-ls -f / | grep -q "/local/domain/[1-9]"' 60
kill $daemon
