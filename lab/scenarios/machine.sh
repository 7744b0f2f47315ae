# lab-addition: hvm
# How Xen runs a guest's machine, SPICE, and the generation of a guest's memory, beside xl.
. /lab/lib.sh
modprobe tun

# It writes a line to the first serial port, byte by byte, and halts.
boot_code='\061\300\216\330\276\025\174\254\204\300\164\006\272\370\003\356\353\365\364\353\375XYLEM-BOOT-SECTOR\r\n\000'

start_xylemd
host_state >/results/state.before

# fields NAME: what libxl knows of these keys, of a running domain.
fields() { xl list -l "$1" | grep -E '"(altp2m|timer_mode|vpt_align|oos|vpmu|nographic)":' | sed 's/,$//; s/^ *//' | sort; }

keys="altp2m = 'external'
timer_mode = 'one_missed_tick_pending'
vpt_align = 0
oos = 0
ms_vm_genid = 'generate'
nographic = 1"

echo "== what xl makes of them"
hvm_cfg theirs "$keys"
check "xl creates" timeout 200 xl create /tmp/theirs.cfg
fields theirs | tee /tmp/theirs.fields
xenstore-read "/local/domain/$(xl domid theirs)/platform/generation-id"
xl destroy theirs

echo "== what xy makes of them"
hvm_cfg ours "$keys"
check "create" xy create -q /tmp/ours.cfg || cat /var/log/xen/qemu-dm-ours.log
check "it boots" wait_for 'grep -q XYLEM-BOOT-SECTOR /tmp/ours.serial' 180
fields ours | tee /tmp/ours.fields
for field in altp2m timer_mode vpt_align oos nographic; do
    check "$field as for xl" eval "grep '\"$field\"' /tmp/theirs.fields >/tmp/a; grep '\"$field\"' /tmp/ours.fields | cmp - /tmp/a"
done

echo "== the generation of its memory"
generation() { xenstore-read "/local/domain/$(xy domid ours)/platform/generation-id"; }
first=$(generation)
echo "$first"
check "it is a pair of numbers" eval 'echo "$first" | grep -qE "^[0-9]+:[0-9]+$"'
check "save" xy save ours /tmp/ours.saved
check "restore" xy restore /tmp/ours.saved
second=$(generation)
check "a restored guest has another one" [ "$first" != "$second" ]
check "destroy" xy destroy ours
check "nothing is left" same_state /results/state.before

echo "== a PVH guest"
linux_cfg pvh "type = 'pvh'" "memory = 128" "timer_mode = 2" "altp2m = 1" "extra = 'console=hvc0 quiet $FAST_BOOT'"
check "create" xy create -q /tmp/pvh.cfg
check "the guest runs" console_wait pvh "XYLEM-GUEST: init reached" 180
check "destroy" xy destroy pvh

echo "== what this host lacks is refused, as by xl"
for line in "vpmu = 1" "passthrough = 'enabled'"; do
    key=${line%% *}
    hvm_cfg lacking "$line"
    check "$line: xl" eval '! timeout 200 xl create /tmp/lacking.cfg'
    check "$line: xy" refused_with "lacking.cfg:.*$key: this host" xy create -q /tmp/lacking.cfg
done
hvm_cfg lacking "vmtrace_buf_kb = 64"
check "vmtrace_buf_kb: xl" eval '! timeout 200 xl create /tmp/lacking.cfg'
check "vmtrace_buf_kb: xy" refused_with "vmtrace_buf_kb: this host's CPUs" xy create -q /tmp/lacking.cfg
check "nothing is left" same_state /results/state.before

echo "== a screen by SPICE"
spice="spice = 1
spicehost = '127.0.0.1'
spiceport = 6001
spicepasswd = 'secret'
vga = 'qxl'"
hvm_cfg spice "$spice"
sed -i 's/^memory.*/memory = 256/' /tmp/spice.cfg
check "create" xy create -q /tmp/spice.cfg || cat /var/log/xen/qemu-dm-spice.log
check "it boots" wait_for 'grep -q XYLEM-BOOT-SECTOR /tmp/spice.serial' 180
check "the screen answers" sh -c "(printf 'REDQ\2\0\0\0\2\0\0\0\22\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\0\0\0\0\22\0\0\0'; sleep 1) | nc 127.0.0.1 6001 | head -c 4 | grep -q REDQ"
model=$(pidof xen-qemu-system-i386)
check "nobody reads its password" eval '! tr "\0" " " <"/proc/$model/cmdline" | grep -q "password=secret"'
check "libxl reads it" eval 'xl list -l spice | grep -A3 \"spice\" | grep -q 6001'
check "destroy" xy destroy spice
check "nothing is left" same_state /results/state.before

echo "== a PV kernel in a PVH guest"
# On the emulated CPU the shim ends at a register that Xen keeps from its guests, xl's as ours.
linux_cfg shim "type = 'pvh'" "memory = 256" "pvshim = 1" "on_crash = 'preserve'" "extra = 'console=hvc0 quiet $FAST_BOOT'"
check "create" xy create -q /tmp/shim.cfg
check "the shim is started" console_wait shim "(XEN) Xen version" 60
check "with the guest's kernel" console_wait shim "(XEN) .*console=hvc0 quiet" 60
check "libxl reads it" eval 'xl list -l shim | grep -q "\"pvshim\": \"True\""'
check "destroy" xy destroy shim
check "nothing is left" same_state /results/state.before

echo "== devices of the host"
linux_cfg pci "type = 'pv'" "memory = 128" "pci = [ '00:1f.2,permissive=1' ]"
check "xl" eval '! timeout 200 xl create /tmp/pci.cfg'
check "xy names the device" refused_with "pci.0.: 0000:00:1f.2: this host has no IOMMU" xy create -q /tmp/pci.cfg
check "nothing is left" same_state /results/state.before
