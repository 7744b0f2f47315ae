# PCI devices of the host are made assignable and given back, as xl does it, with xl's devices and ours known to both.
# Needs `--iommu`.
. /lab/lib.sh
xl info virt_caps | grep -q pv_directio || fail "this machine has no IOMMU: run it with --iommu"
start_xylemd
host_state >/results/state.before
card=0000:00:10.0
bare=0000:00:11.0
driver() { readlink "/sys/bus/pci/devices/$1/driver" | sed 's|.*/||'; }
before=$(driver $card)
echo "$card: driver $before; $bare: driver $(driver $bare)"

echo "== without xen-pciback"
check "xl: the list is empty" test -z "$(xl pci-assignable-list)"
check "the list is refused" refused_with 'modprobe xen-pciback' xy pci-assignable-list
check "add is refused" refused_with 'modprobe xen-pciback' xy pci-assignable-add $card
check "the device keeps its driver" test "$(driver $card)" = "$before"
modprobe xen-pciback || fail "dom0 has no xen-pciback"

# both VERB WORDS...: the same text and status.
both() {
    xl "$@" >/tmp/theirs 2>/tmp/theirs.err
    lab_theirs=$?
    xy "$@" >/tmp/ours 2>/tmp/ours.err
    lab_ours=$?
    cat /tmp/theirs.err /tmp/ours.err
    diff /tmp/theirs /tmp/ours && [ $lab_theirs = $lab_ours ]
}
# nodes: what the store has of devices.
nodes() { xenstore-ls -p /libxl/pci 2>/dev/null; }
add_and_remove() {
    "$1" pci-assignable-add -n card 00:10.0 && "$1" pci-assignable-add $bare && nodes >"/results/nodes.$1"
}

echo "== each by its own"
check "both: nothing is assignable" both pci-assignable-list
check "xl: add" add_and_remove xl
check "both: what xl added" both pci-assignable-list
check "both: with names" both pci-assignable-list -n
check "xl: remove" xl pci-assignable-remove -r card
check "xl: remove the other" xl pci-assignable-remove $bare
check "the device has its driver again" test "$(driver $card)" = "$before"
check "add" add_and_remove xy
check "the nodes are the same" diff /results/nodes.xl /results/nodes.xy
check "both: what we added" both pci-assignable-list -n
check "pciback has them" test "$(driver $card) $(driver $bare)" = "pciback pciback"
check "a second time" xy pci-assignable-add -n card $card
check "remove" xy pci-assignable-remove -r card
check "remove the other" xy pci-assignable-remove $bare
check "the device has its driver again" test "$(driver $card)" = "$before"
check "both: nothing is assignable" both pci-assignable-list

echo "== changing hands"
check "xl: add" add_and_remove xl
check "remove what xl added" xy pci-assignable-remove -r card
check "remove the other that xl added" xy pci-assignable-remove 00:11.0
check "the device has its driver again" test "$(driver $card)" = "$before"
check "add" add_and_remove xy
check "xl: remove what we added" xl pci-assignable-remove -r card
check "xl: remove the other" xl pci-assignable-remove $bare
check "the device has its driver again" test "$(driver $card)" = "$before"

echo "== refused"
check "no such device" refused_with 'no such PCI device' xy pci-assignable-add 00:1e.0
check "no such name" refused_with 'no device has this name' xy pci-assignable-remove nic
check "no address" refused_with 'SEGMENT' xy pci-assignable-add 00:10
check "not in quarantine" refused_with 'not in quarantine' xy pci-assignable-remove $card
check "the device keeps its driver" test "$(driver $card)" = "$before"

echo "== killed between two steps"
check "add" xy pci-assignable-add $card
kill_xylemd
# As after the first step and a half.
echo $card >/sys/bus/pci/drivers/pciback/unbind
start_xylemd
check "add completes it" xy pci-assignable-add $card
check "it is listed" sh -c "xy pci-assignable-list | grep -q $card"
check "remove" xy pci-assignable-remove -r $card
check "the device has its driver again" test "$(driver $card)" = "$before"

echo "== domains"
unikernel_cfg one "type = 'pv'"
check "create" xy create -q /tmp/one.cfg
check "both: no device" both pci-list one
check "both: no such domain" both pci-list none
check "destroy" xy destroy one
xenstore-rm /libxl/pci 2>/dev/null
check "nothing is left" same_state /results/state.before
