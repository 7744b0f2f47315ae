# lab-addition: hvm
# lab-addition: boot-disk
# A Linux guest of type HVM from its own disk, by SeaBIOS and by OVMF: its emulated disk and card go when its PV drivers come, and
# all that an operator does with it works: console, ballooning, ACPI button, save, restore, reboot, screen.
# For instance: lab run --mem 4096 --dom0-mem 1536 --timeout 3600 hvm-linux, or one of both: hvm-linux uefi
# SeaBIOS reads 16 MiB by port I/O, which takes minutes on an emulated machine.
. /lab/lib.sh
modprobe -a tun vfat nls_cp437 nls_ascii
models() { pidof xen-qemu-system-i386; }
same() { same_state /results/state.before && [ -z "$(models)" ]; }

echo "== a disk with GRUB for BIOS and UEFI, a kernel, and a file system of its own"
words="quiet $FAST_BOOT console=hvc0 console=ttyS0,115200 xylem.ip=10.0.0.9 xylem.disk=xvdb xylem.power=1 xylem.tick=5"
cat >/tmp/grub.cfg <<END
serial --unit=0 --speed=115200
terminal_output serial
echo "GRUB on \$grub_platform"
search --no-floppy --file --set=root /vmlinuz
linux /vmlinuz $words
initrd /initramfs
boot
END
modules="fat part_msdos search search_fs_file linux normal echo serial terminal"
grub-mkimage -O i386-pc -o /tmp/core.img -c /tmp/grub.cfg -p /grub $modules biosdisk || fail "no image for BIOS"
grub-mkimage -O x86_64-efi -o /tmp/boot.efi -c /tmp/grub.cfg -p /grub $modules || fail "no image for UEFI"
dd if=/dev/zero of=/tmp/boot.img bs=1048576 count=48 2>/dev/null
dd if=/usr/lib/grub/i386-pc/boot.img of=/tmp/boot.img bs=440 count=1 conv=notrunc 2>/dev/null
dd if=/tmp/core.img of=/tmp/boot.img bs=512 seek=1 conv=notrunc 2>/dev/null
# One partition from sector 2048 on, of type EF (UEFI's), active: 0x17800 - 0x800 sectors.
printf '\200\000\000\000\357\000\000\000\000\010\000\000\000\160\001\000' | dd of=/tmp/boot.img bs=1 seek=446 conv=notrunc 2>/dev/null
printf '\125\252' | dd of=/tmp/boot.img bs=1 seek=510 conv=notrunc 2>/dev/null
dd if=/dev/zero of=/tmp/part.img bs=1048576 count=46 2>/dev/null
mkfs.fat -F 16 /tmp/part.img >/dev/null 2>&1
loop=$(losetup -f)
losetup "$loop" /tmp/part.img
mkdir -p /tmp/boot && mount -t vfat "$loop" /tmp/boot || fail "no file system"
cp /guest/vmlinuz /guest/initramfs /tmp/boot/
mkdir -p /tmp/boot/EFI/BOOT && cp /tmp/boot.efi /tmp/boot/EFI/BOOT/BOOTX64.EFI
umount /tmp/boot
losetup -d "$loop"
dd if=/tmp/part.img of=/tmp/boot.img bs=1048576 seek=1 conv=notrunc 2>/dev/null
check "it is made" [ "$(stat -c %s /tmp/boot.img)" = 50331648 ]

# linux NAME [LINES...]
linux() {
    lab_name=$1
    shift
    cp /tmp/boot.img "/tmp/$lab_name.img"
    cp /guest/disk.img "/tmp/$lab_name.data"
    {
        echo "name = '$lab_name'"
        echo "type = 'hvm'"
        echo "memory = 160"
        echo "maxmem = 192"
        echo "disk = ['/tmp/$lab_name.img,raw,hda,w', '/tmp/$lab_name.data,raw,xvdb,w']"
        echo "vif = ['bridge=xenbr0']"
        echo "serial = 'pty'"
        echo "vnc = 1"
        for lab_line in "$@"; do echo "$lab_line"; done
    } >"/tmp/$lab_name.cfg"
}
# serial NAME: what its serial port says, kept in a file.
serial() {
    xy console -t serial "$1" >>"/tmp/$1.serial" 2>&1 &
    echo $! >"/tmp/$1.reader"
}
says() { wait_for "grep -aq -- '$2' /tmp/$1.serial" "$3"; }
start_xylemd
host_state >/results/state.before

# whole NAME: a guest from its first line to its end.
whole() {
    : >"/tmp/$1.serial"
    check "create" xy create -q "/tmp/$1.cfg" || { cat "/var/log/xen/qemu-dm-$1.log"; exit 1; }
    serial "$1"
    start=$(now)
    check "GRUB speaks" says "$1" "GRUB on" 600 || { tail -n 20 "/tmp/$1.serial"; exit 1; }
    echo "GRUB after $(seconds_since "$start") s"
    check "Linux starts" says "$1" "XYLEM-GUEST: init reached" 1800 || { tail -n 20 "/tmp/$1.serial"; exit 1; }
    echo "Linux after $(seconds_since "$start") s"
    check "it is ready" says "$1" "XYLEM-GUEST: ready" 300
    check "its disk works" says "$1" "disk=ok" 5
    check "its network works" says "$1" "network=ok" 5
    check "it has PV disks only" says "$1" "disks=xvda xvdb" 5
    check "it knows its clock" says "$1" "clock=[xt]" 5
    xl qemu-monitor-command "$1" 'info block'
    check "its emulated disk is unplugged" sh -c "! xl qemu-monitor-command $1 'info block' | grep -q ^ide"
    xl qemu-monitor-command "$1" 'info pci'
    check "its emulated card is unplugged" sh -c "! xl qemu-monitor-command $1 'info pci' | grep -q 'Ethernet controller'"
    grep -a XYLEM-GUEST "/tmp/$1.serial"
}

if [ "${1:-bios}" = bios ]; then
echo "== SeaBIOS"
linux bios "usb = 1" "usbdevice = 'tablet'" "viridian = 1" "localtime = 1"
whole bios
echo "-- consoles"
check "its terminal is told" [ -c "$(xenstore-read "/local/domain/$(xy domid bios)/serial/0/tty")" ]
timeout 20 xy console -t pv bios </dev/null >/tmp/console.pv 2>&1
check "its PV console is another" sh -c "! grep -aq tick= /tmp/console.pv"
lines=$(grep -ac tick= /tmp/bios.serial)
check "it goes on by the serial port" wait_for "[ \$(grep -ac tick= /tmp/bios.serial) -gt $lines ]" 60
echo "-- screen"
port=$(xenstore-read "/local/domain/$(xy domid bios)/console/vnc-port")
check "the screen answers" sh -c "(sleep 1) | nc 127.0.0.1 $port | head -c 3 | grep -q RFB"
check "the tablet is there" sh -c "xl qemu-monitor-command bios 'info usb' | grep -qi tablet"
echo "-- ballooning"
mib() { xl list bios | awk 'NR == 2 { print $3 }'; }
before=$(mib)
check "mem-set down" xy mem-set bios 128
check "it gives memory up" wait_for "[ \$(mib) -le $((before - 28)) ]" 120
echo "$before MiB, then $(mib)"
check "mem-set up" xy mem-set bios 160
# What a Linux guest makes of a target depends on what it took its memory for at its start: it gets back what it had.
check "it takes it back" wait_for "[ \$(mib) -ge $((before - 1)) ]" 120 || echo "it has $(mib) MiB"
echo "-- save and restore"
check "save" xy save bios /tmp/bios.saved
kill "$(cat /tmp/bios.reader)" 2>/dev/null
check "nothing is left but the file" same
check "restore" xy restore /tmp/bios.saved
serial bios
lines=$(grep -ac tick= /tmp/bios.serial)
check "it goes on" wait_for "[ \$(grep -ac tick= /tmp/bios.serial) -gt $((lines + 2)) ]" 120
check "its network works again" wait_for 'ping -c 1 -W 1 10.0.0.9' 60
echo "-- the power button"
check "-F asks by PV where there are such drivers" xy shutdown -w bios
check "it powered off" says bios "shutdown=poweroff" 5
kill "$(cat /tmp/bios.reader)" 2>/dev/null
check "nothing is left" same
fi

[ "${1:-uefi}" = uefi ] || exit
echo "== OVMF"
linux uefi "bios = 'ovmf'"
# OVMF and GRUB leave too little of less.
sed -i 's/^memory = .*/memory = 384/; s/^maxmem = .*/maxmem = 384/' /tmp/uefi.cfg
whole uefi
check "by UEFI" says uefi "GRUB on efi" 1
echo "-- reboot"
: >/tmp/uefi.serial
check "reboot" xy reboot -w uefi
kill "$(cat /tmp/uefi.reader)" 2>/dev/null
serial uefi
check "it starts anew" says uefi "XYLEM-GUEST: ready" 1200
echo "-- the power button"
xl trigger uefi power
check "it hears it" says uefi "power=pressed" 60
check "and is gone" wait_for '! xy list uefi' 120
kill "$(cat /tmp/uefi.reader)" 2>/dev/null
check "nothing is left" same
