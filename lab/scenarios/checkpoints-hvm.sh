# lab-addition: hvm
# lab-addition: lvm
# An HVM guest without PV drivers is checkpointed with its device model's state and a disk on a thin volume, and taken back.
. /lab/lib.sh
. /lab/storage-lvm.sh
modprobe tun

# As in save-restore-hvm.sh: "A", "B", ... "Z", "A", one in a line.
boot_code='\260\100\376\300\074\133\162\002\260\101\272\370\003\356\120\260\012\356\130\271\074\000\121\271\377\377\342\376\131\342\367\353\341'
truncate -s 256M /tmp/disk.lvm
disk=$(losetup -f)
losetup "$disk" /tmp/disk.lvm

models() { pidof xen-qemu-system-i386 qemu-system-i386; }
same() { same_state /results/state.before && [ -z "$(models)" ]; }
letters() { tr -d '\r\n' </tmp/one.serial; }
counts_on() {
    lab_count=$(letters | wc -c)
    wait_for "[ \$(letters | wc -c) -gt $((lab_count + 3)) ]" 180
}
put_boot_sector() { dd if=/tmp/one.img "of=$1" conv=fsync 2>/dev/null; }

start_xylemd
check "sr-create" xy sr-create s lvmthin "device=$disk"
check "vdi-create" xy vdi-create s:one 4M
hvm_cfg one "vif = ['bridge=xenbr0,type=ioemu']"
with_device s:one put_boot_sector
sed -i "s,^disk = .*,disk = ['s:one\,\,hda\,w']," /tmp/one.cfg
host_state >/results/state.before

check "create" xy create -q /tmp/one.cfg || { cat /var/log/xen/qemu-dm-one.log; exit 1; }
check "it counts" wait_for '[ $(letters | wc -c) -gt 3 ]' 240 || exit
before=$(letters | wc -c)
check "a checkpoint" xy checkpoint one first || { tail -5 /var/log/xen/qemu-dm-one.log; exit 1; }
after=$(letters | wc -c)
xy checkpoint-list
check "it counts on" counts_on
# What may come first after the checkpoint.
then=$(letters | tail -c +$((before + 1)) | head -c $((after - before + 1)))
for round in 1 2; do
    check "a revert ($round)" xy revert one first || { tail -5 /var/log/xen/qemu-dm-one.log; exit 1; }
    check "it counts on" counts_on
    first=$(letters | head -c 1)
    check "where it was: with $first, one of $then" eval 'echo "$then" | grep -q "$first"'
done
check "copies are not made of HVM guests" refused_with 'only PV and PVH domains can be cloned' xy clone one:first --count 2
check "destroy" xy destroy one
check "destroy the checkpoint" xy checkpoint-destroy one first
check "nothing is left" same
