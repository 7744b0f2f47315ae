# lab-addition: hvm
# PCI devices of the host are made assignable and given back, as xl does it, with xl's devices and ours known to both.
# Needs `--iommu --vmlinux --timeout 1200`.
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

echo "== a PV guest has a device"
check "add" xy pci-assignable-add -n card $card
host_state >/results/state.assignable
linux_cfg pv "type = 'pv'" "memory = 128" "extra = 'console=hvc0 quiet $FAST_BOOT xylem.pci=1'" \
    "pci = ['00:10.0,permissive=1']"
# xl does not unpack the compressed kernel under emulation in any time worth waiting for.
[ ! -e /guest/vmlinux ] || sed -i 's|/guest/vmlinuz|/guest/vmlinux|' /tmp/pv.cfg
# backend: its nodes, without the domain's number and what changes by itself.
# nameless DOMID: without its number.
nameless() { sed -e "s|/$1/|/N/|g" -e "s|\"$1\"|\"N\"|" -e "s/\([nr]\)$1\b/\1N/g" | grep -v '/state' | sort; }
backend() { xenstore-ls -fp "/local/domain/0/backend/pci/$1" | nameless "$1"; }
frontend() { xenstore-ls -fp "/local/domain/$1/device/pci" | nameless "$1"; }
runs() {
    check "$1: the guest sees it" console_wait pv 'pci=0000:00:00.0 0x1af4:0x1005' 120
    check "$1: and reads random bytes from it" console_wait pv 'rng=[0-9]' 60
    check "$1: not one of them twice" test "$(sed -n 's/.*rng=\([0-9]*\).*/\1/p' "$(console_log pv)" | tail -n 1)" -gt 32
    domid=$(xl domid pv)
    backend "$domid" >"/results/backend.$1"
    frontend "$domid" >"/results/frontend.$1"
    check "$1: both list it" both pci-list pv
    check "$1: it is not assignable" both pci-assignable-list
    check "$1: it is not given back" refused_with 'shut it down first' xy pci-assignable-remove card
    check "$1: nor to another" refused_with "domain $domid has it" xy create -q /tmp/one.cfg
}
unikernel_cfg one "type = 'pv'" "pci = ['00:10.0']"
check "create" xy create -q /tmp/pv.cfg
runs xy
check "it is not saved" refused_with 'PCI devices of this host' xy save pv /tmp/pv.save
check "reboot" xy reboot -w pv
: >"$(console_log pv)"
check "its next domain sees it" console_wait pv 'rng=[0-9]' 180
check "shut down" xy shutdown -w pv
check "nothing is left" same_state /results/state.assignable
check "it is assignable" sh -c "xy pci-assignable-list -n | grep -q '$card card'"

echo "== xl's has the same"
: >"$(console_log pv)"
check "xl: create" xl create -q /tmp/pv.cfg
runs xl
check "xl: shut down" xl shutdown -w pv
wait_for '! xl domid pv' 30
# xl leaves the backend behind.
xenstore-rm /local/domain/0/backend/pci
check "the backends are the same" diff /results/backend.xl /results/backend.xy
check "the frontends are the same" diff /results/frontend.xl /results/frontend.xy

echo "== a running guest gets devices and loses them"
check "add the other" xy pci-assignable-add $bare
sed -i 's/xylem.pci=1/xylem.pci=watch/' /tmp/pv.cfg
# guest_has TOOL COUNT: from here on.
guest_has() { check "$1: the guest has $2" console_wait pv "pci_devices=$2 " 120 && : >"$(console_log pv)"; }
plugs() {
    : >"$(console_log pv)"
    check "$1: create" "$1" create -q /tmp/pv.cfg
    guest_has "$1" 1
    check "$1: attach" "$1" pci-attach pv "$bare@6,permissive=1"
    guest_has "$1" 2
    domid=$(xl domid pv)
    backend "$domid" >"/results/backend.two.$1"
    check "$1: both list two" both pci-list pv
    check "$1: detach" "$1" pci-detach pv $card
    guest_has "$1" 1
    backend "$domid" >"/results/backend.one.$1"
    check "$1: both list one" both pci-list pv
    check "$1: what was detached is assignable" both pci-assignable-list -n
    check "$1: detach the last" "$1" pci-detach pv 00:11.0
    guest_has "$1" 0
    # What the guest wrote below its own `error` is its own.
    check "$1: nothing of it is left" sh -c "! xenstore-ls -f | grep -v -e '^/libxl/pci/' -e /error/device/ | grep pci/"
    check "$1: attach by name" "$1" pci-attach pv name=card
    guest_has "$1" 1
    check "$1: detach by address, by force" "$1" pci-detach -f pv $card
    guest_has "$1" 0
    check "$1: shut down" "$1" shutdown -w pv
}
plugs xy
check "nothing is left" sh -c "! xl domid pv"
plugs xl
wait_for '! xl domid pv' 30
xenstore-rm /local/domain/0/backend/pci 2>/dev/null
for it in one two; do
    check "the backends are the same: $it" diff /results/backend.$it.xl /results/backend.$it.xy
done

echo "== xl's domain is adopted with its device"
: >"$(console_log pv)"
check "xl: create" xl create -q /tmp/pv.cfg
guest_has xl 1
check "adopt" xy adopt pv
check "both list it" both pci-list pv
check "it has it in its configuration" sh -c "xy list -l pv | grep -q pcidevs"
check "detach" xy pci-detach pv $card
guest_has adopted 0
check "attach" xy pci-attach pv $card
guest_has adopted 1
check "destroy" xy destroy pv
check "it is assignable" sh -c "xy pci-assignable-list -n | grep -q '$card card'"
check "remove the other" xy pci-assignable-remove $bare

echo "== an HVM guest has devices"
modprobe tun
# A boot sector that looks for the edu device on its PCI bus, whose interface is in QEMU's docs/specs/edu.rst. In protected mode,
# it reads the device's identification, has it invert a number, and has it copy four bytes of the guest's memory by way of its own
# memory. On the serial port it says O, or what was wrong: N, there is none; I, L, D. Then it turns in
# circles: a guest that halts without interrupts has shut down.
boot_code='\372\061\300\216\330\216\320\274\000\174\146\017\001\026\130\175\017\040\300\014\001\017\042\300\352\035\174\010'\
'\000\146\270\020\000\216\330\216\300\216\320\273\000\000\000\200\211\330\350\276\000\000\000\075\064\022\350\021'\
'\164\025\201\303\000\010\000\000\201\373\000\000\001\200\162\344\260\116\351\210\000\000\000\215\103\004\350\232'\
'\000\000\000\014\006\357\215\103\020\350\217\000\000\000\203\340\360\211\307\213\007\261\111\075\355\000\000\001'\
'\165\143\307\107\004\170\126\064\022\213\107\004\261\114\075\207\251\313\355\165\120\307\005\000\220\000\000\276'\
'\272\376\312\307\207\200\000\000\000\000\220\000\000\307\207\210\000\000\000\000\000\004\000\260\001\350\121\000'\
'\000\000\307\207\200\000\000\000\000\000\004\000\307\207\210\000\000\000\000\240\000\000\260\003\350\066\000\000'\
'\000\261\104\201\075\000\240\000\000\276\272\376\312\165\002\261\117\210\310\242\071\175\000\000\276\057\175\000'\
'\000\272\370\003\000\000\254\204\300\164\003\356\353\370\353\376\220\272\370\014\000\000\357\262\374\355\303\017'\
'\266\300\307\207\220\000\000\000\004\000\000\000\307\207\204\000\000\000\000\000\000\000\307\207\214\000\000\000'\
'\000\000\000\000\211\207\230\000\000\000\367\207\230\000\000\000\001\000\000\000\165\364\303\130\131\114\105\115'\
'\055\105\104\125\075\077\015\012\000\215\166\000\000\000\000\000\000\000\000\000\377\377\000\000\000\232\317\000'\
'\377\377\000\000\000\222\317\000\027\000\100\175\000\000'
# The machine's CPU is AMD's, its IOMMU Intel's: they cannot use the same tables.
hvm_cfg hvm "passthrough = 'sync_pt'" "pci = ['00:10.0', '00:11.0@9,permissive=1']"
hvm_runs() {
    check "$1: create" "$1" create -q /tmp/hvm.cfg || cat /var/log/xen/qemu-dm-hvm.log
    check "$1: the guest works with its device" wait_for 'grep -q XYLEM-EDU= /tmp/hvm.serial' 180
    check "$1: in all ways" grep -q 'XYLEM-EDU=O' /tmp/hvm.serial || cat /tmp/hvm.serial
    domid=$(xl domid hvm)
    backend "$domid" >"/results/backend.hvm.$1"
    check "$1: both list them" both pci-list hvm
    check "$1: destroy" "$1" destroy hvm
    rm -f /tmp/hvm.serial
}
check "add the other" xy pci-assignable-add $bare
check "create" xy create -q /tmp/hvm.cfg || cat /var/log/xen/qemu-dm-hvm.log
model=$(pidof xen-qemu-system-i386)
tr '\0' ' ' <"/proc/$model/cmdline"; echo
check "its device model has a user of its own" grep -q '^Uid:.19000000' "/proc/$model/status"
check "and no capabilities" grep -q '^CapEff:.0000000000000000' "/proc/$model/status"
check "and sees no files" [ -z "$(ls "/proc/$model/root/")" ]
check "it gets no other one now" refused_with 'from their start' xy pci-attach hvm $card
check "destroy" xy destroy hvm
rm -f /tmp/hvm.serial
hvm_runs xy
check "both: they are assignable again" both pci-assignable-list -n
hvm_runs xl
wait_for '! xl domid hvm' 30
# xl leaves these behind.
xenstore-rm /local/domain/0/backend/pci 2>/dev/null
xenstore-rm /local/domain/0/device-model 2>/dev/null
check "the backends are the same" diff /results/backend.hvm.xl /results/backend.hvm.xy
check "remove the other" xy pci-assignable-remove $bare

echo "== a device is seized from its driver"
check "remove" xy pci-assignable-remove -r card
unikernel_cfg one "type = 'pv'" "pci = ['00:10.0,seize=1']"
check "create" xy create -q /tmp/one.cfg
check "pciback has it" test "$(driver $card)" = pciback
check "a killed daemon's successor knows" eval 'kill_xylemd; start_xylemd; [ "$(xy pci-list one | wc -l)" = 2 ]'
check "destroy" xy destroy one
check "remove" xy pci-assignable-remove -r $card
check "the device has its driver again" test "$(driver $card)" = "$before"
xenstore-rm /libxl/pci 2>/dev/null
check "nothing is left" same_state /results/state.before
