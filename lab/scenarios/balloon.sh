# Domain 0 owns almost all memory and gives it to VMs: --mem 2048 --dom0-mem 1850.
. /lab/lib.sh

mkdir -p /etc/xen
echo 'autoballoon="on"' >/etc/xen/xl.conf
start_xylemd --dom0-memory-min 700

# of NAME MIB: a unikernel with so much memory.
of() {
    unikernel_cfg "$1"
    sed -i "s/^memory = .*/memory = $2/" "/tmp/$1.cfg"
}
dom0_mib() { xl list 0 | awk 'NR == 2 { print $3 }'; }
free_mib() { xl info free_memory; }

first=$(dom0_mib)
echo "domain 0 has $first MiB, $(free_mib) are free"
of one 300
check "a VM for which there is too little gets it from domain 0" xy create -q /tmp/one.cfg
check "it runs" console_wait one hello 60
after=$(dom0_mib)
echo "domain 0 has $after MiB, $(free_mib) are free"
check "domain 0 has less" test "$after" -lt "$first"
of two 150
of three 150
xy create -q /tmp/two.cfg & two=$!
xy create -q /tmp/three.cfg & three=$!
wait $two && wait $three
check "two at once get memory" test $? = 0
check "both run" sh -c 'xl domid two && xl domid three'
echo "domain 0 has $(dom0_mib) MiB, $(free_mib) are free"
of large 3000
check "what domain 0 may not give is refused" refused_with 'MiB are missing' xy create -q /tmp/large.cfg
check "nothing is left of it" sh -c '! xl domid large'
check "domain 0 has no less than its least" test "$(dom0_mib)" -ge 700
before=$(dom0_mib)
check "one ends" xy destroy one
of four 250
check "its memory is used first" xy create -q /tmp/four.cfg
check "domain 0 keeps its own" test "$(dom0_mib)" = "$before"
echo 'autoballoon="off"' >/etc/xen/xl.conf
of five 300
check "domain 0 gives nothing if it is told so" refused_with 'stop another VM or reduce memory' xy create -q /tmp/five.cfg
check "it has what it had" test "$(dom0_mib)" = "$before"
for name in two three four; do xy destroy $name; done
