# lab-addition: hvm
# The host's own hardware for guests (ioports, irqs, iomem), and settings of the machine that few HVM guests have.
. /lab/lib.sh
modprobe tun

# It writes a line to the first serial port, byte by byte, and halts.
boot_code='\061\300\216\330\276\025\174\254\204\300\164\006\272\370\003\356\353\365\364\353\375XYLEM-BOOT-SECTOR\r\n\000'

start_xylemd
host_state >/results/state.before

# ranges DOMID: what Xen allows a domain.
ranges() {
    xl debug-keys q
    xl dmesg | awk -v domain="$1:" '
        /Rangesets belonging to domain/ { is_it = $NF == domain; if (is_it) text = "" }
        is_it && /I\/O Ports|Interrupts|I\/O Memory/ { sub(/^\(XEN\) */, ""); sub(/^\[[^]]*\] */, ""); text = text $0 "\n" }
        END { printf "%s", text }'
}

keys="ioports = [ '378-37f', '3bc' ]
irqs = [ 7 ]
iomem = [ 'fed40,2' ]"

echo "== what xl gives"
linux_cfg theirs "type = 'pv'" "memory = 128" "$keys"
check "xl creates" timeout 200 xl create -p /tmp/theirs.cfg
ranges "$(xl domid theirs)" | tee /tmp/theirs.ranges
xl destroy theirs

echo "== what xy gives"
linux_cfg ours "type = 'pv'" "memory = 128" "$keys"
check "create" xy create -q -p /tmp/ours.cfg
ranges "$(xy domid ours)" | tee /tmp/ours.ranges
check "Xen allows the ports" grep -q 'I/O Ports.*378-37f.*3bc' /tmp/ours.ranges
check "the same as for xl" cmp /tmp/theirs.ranges /tmp/ours.ranges
check "libxl reads them" eval 'xl list -l ours | grep -A2 ioports | grep -q 888'
check "destroy" xy destroy ours

echo "== a PVH guest has the memory mapped"
linux_cfg pvh "type = 'pvh'" "memory = 128" "iomem = [ 'fed40,2@f0000' ]" "shadow_memory = 12" "msr_relaxed = 1" \
    "extra = 'console=hvc0 quiet $FAST_BOOT'"
check "create" xy create -q /tmp/pvh.cfg
check "the guest is ready" console_wait pvh "XYLEM-GUEST: ready" 180
check "destroy" xy destroy pvh

echo "== what Xen refuses is named"
linux_cfg bad "type = 'pv'" "memory = 128" "irqs = [ 60000 ]"
check "an interrupt that is none" refused_with 'bad.cfg:6: irqs.0.: interrupt 60000: Xen returned' xy create -q /tmp/bad.cfg
hvm_cfg bad "mca_caps = [ 'lmce' ]"
check "what no CPU of this host has" refused_with "mca_caps: do this host's CPUs have lmce" xy create -q /tmp/bad.cfg
check "nothing is left" same_state /results/state.before

echo "== an HVM guest with another machine"
# A table of its own kind: signature, size, revision, checksum, and who made it.
printf 'XYLM\044\000\000\000\001\000XYLEM LABTABLE\001\000\000\000LAB \001\000\000\000' >/tmp/table
hvm_cfg machine "mmio_hole = 1024" "pae = 0" "acpi_laptop_slate = 1" "shadow_memory = 16" "msr_relaxed = 1" \
    "acpi_firmware = '/tmp/table'" "smbios = [ 'system_manufacturer=Xylem', 'oem=first', 'oem=second' ]"
check "create" xy create -q /tmp/machine.cfg || cat /var/log/xen/qemu-dm-machine.log
check "it boots" wait_for 'grep -q XYLEM-BOOT-SECTOR /tmp/machine.serial' 180
domid=$(xy domid machine)
check "hvmloader is told" [ "$(xenstore-read "/local/domain/$domid/bios-strings/system-manufacturer")" = Xylem ]
check "of each text" [ "$(xenstore-read "/local/domain/$domid/bios-strings/oem-2")" = second ]
check "the hole is as large as that" [ "$(xenstore-read "/local/domain/$domid/platform/mmio_hole_size")" = 1073741824 ]
check "hvmloader adds its table" [ "$(xenstore-read "/local/domain/$domid/hvmloader/acpi/length")" = 0x24 ]
check "destroy" xy destroy machine
check "nothing is left" same_state /results/state.before
