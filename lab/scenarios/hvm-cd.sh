# lab-addition: hvm
# The CD of an HVM guest's emulated drive comes and goes while it runs: its device model, which sees no files, is handed it. And the
# store says where a serial port is that is a terminal.
. /lab/lib.sh
modprobe tun

# It does nothing, forever.
boot_code='\353\376'

# drive PATTERN: what the device model says of it.
drive() { xl qemu-monitor-command one "info block" | grep -A2 '^ide-5632' | grep -q -- "$1"; }
same() { same_state /results/state.before && ! pidof xen-qemu-system-i386; }

start_xylemd
host_state >/results/state.before
cp /guest/disk.img /tmp/first.iso
cp /guest/disk.img /tmp/second.iso
hvm_cfg one
sed -i "s/hda,w'/hda,w', ',,hdc,devtype=cdrom,r'/; s/^serial.*/serial = ['null', 'pty']/" /tmp/one.cfg
check "create with an empty drive" xy create -q /tmp/one.cfg || { cat /var/log/xen/qemu-dm-one.log; exit 1; }
check "where its serial port is" [ -c "$(xenstore-read "/local/domain/$(xl domid one)/serial/1/tty")" ]
check "the drive is empty" drive 'not inserted'
check "insert" xy cd-insert one hdc /tmp/first.iso
check "it is in the drive" drive 'fdset/0 (raw, read-only)'
check "change" xy cd-insert one hdc /tmp/second.iso
check "it is in the drive" drive 'fdset/0 (raw, read-only)'
check "the first is let go of" [ "$(losetup -a | grep -c /5632)" = 1 ]
check "one that is not there is refused" eval '! xy cd-insert one hdc /tmp/third.iso 2>/tmp/err && grep third.iso /tmp/err'
check "the other stays" drive 'fdset/0 (raw, read-only)'
check "save" xy save one /tmp/one.saved
check "restore" xy restore /tmp/one.saved
check "it is in the drive" drive 'raw, read-only'
check "eject" xy cd-eject one hdc
check "the drive is empty" drive 'not inserted'
check "it is let go of" eval '! losetup -a | grep /5632'
check "insert" xy cd-insert one hdc /tmp/first.iso
check "destroy" xy destroy one
check "nothing is left" same
