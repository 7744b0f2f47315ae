# lab-addition: pygrub
# Guests whose kernel is on their own disk: Debian's pygrub and PV GRUB, and bootloaders that hang, fail, lie or are
# killed, over file systems that are broken.
. /lab/lib.sh
modprobe ext4

state=/var/lib/xylem/bootloader
same() { same_state /results/state.before && [ -z "$(ls $state 2>/dev/null)" ]; }

# disk NAME WORDS: an image with a file system, with a kernel and what grub is told of it.
disk() {
    dd if=/dev/zero of="/tmp/$1.img" bs=1M count=0 seek=40 2>/dev/null
    mke2fs -F "/tmp/$1.img" >/dev/null 2>&1 || fail "no file system"
    on_disk "$1" "mkdir -p boot/grub; cp /guest/vmlinuz boot/vmlinuz; cp /guest/initramfs boot/initrd"
    menu "$1" "$2"
}

# on_disk NAME COMMANDS: in its file system.
on_disk() {
    mkdir -p /tmp/mnt
    mount -t ext4 -o loop "/tmp/$1.img" /tmp/mnt || fail "cannot mount $1"
    (cd /tmp/mnt && eval "$2")
    umount /tmp/mnt
}

menu() {
    on_disk "$1" "cat >boot/grub/grub.cfg" <<END
set default=0
set timeout=0
menuentry 'lab' {
    linux /boot/vmlinuz console=hvc0 $FAST_BOOT $2
    initrd /boot/initrd
}
END
}

# cfg NAME [LINES...]
cfg() {
    lab_name=$1
    shift
    {
        echo "name = '$lab_name'"
        echo "memory = 192"
        echo "disk = ['/tmp/$lab_name.img,raw,xvda,w']"
        for lab_line in "$@"; do echo "$lab_line"; done
    } >"/tmp/$lab_name.cfg"
}

# script NAME: a bootloader of the host's own, from standard input. $out is the file of its answer.
script() {
    mkdir -p /opt/boot
    {
        echo '#!/bin/sh'
        echo 'for word in "$@"; do case $word in --output=*) out=${word#*=} ;; esac; done'
        cat
    } >"/opt/boot/$1"
    chmod 755 "/opt/boot/$1"
}

start_xylemd
disk web "xylem.mark=one"
host_state >/results/state.before

echo "== pygrub finds the kernel"
cfg web "bootloader = 'pygrub'" "extra = 'xylem.more=two'"
xy plan create /tmp/web.cfg
start=$(now)
check "create" xy create -q /tmp/web.cfg
echo "created after $(seconds_since "$start") s"
check "the guest boots" console_wait web 'XYLEM-GUEST' 180
check "by the words of its disk and of its file" grep -q 'xylem.mark=one.*xylem.more=two' "$(console_log web)"
check "nothing is left of the bootloader" [ -z "$(ls $state)" ]
check "it ran, and its log is there" [ -e /var/log/xen/bootloader-web.log ]

echo "== it runs again when the guest reboots"
menu web "xylem.mark=three"
check "reboot" xy reboot -w web
check "the guest has what its disk says by now" console_wait web 'xylem.mark=three' 180
check "destroy" xy destroy web
check "nothing is left" same

echo "== a bootloader is confined"
script curious <<'END'
id -u
ls /run /tmp /var /home /proc 2>&1 | tr '\n' ' '
cat /etc/passwd /proc/1/environ
echo x >/run/disk && echo "WROTE"
ls /sys/class/net
head -c 1024 /run/disk | wc -c
exit 3
END
cp /tmp/web.img /tmp/curious.img
cfg curious "bootloader = '/opt/boot/curious'"
check "its failure is told" refused_with 'curious.cfg:4: bootloader: /opt/boot/curious: failed with status 3: 1024' xy create -q /tmp/curious.cfg
cat /var/log/xen/bootloader-curious.log
check "it has a user of its own" grep -q '^190003' /var/log/xen/bootloader-curious.log
check "it cannot write to the disk" eval '! grep -q WROTE /var/log/xen/bootloader-curious.log'
rm -f /tmp/curious.img
check "it sees no file of the host" eval '! grep -q root: /var/log/xen/bootloader-curious.log'
check "nothing is left" same

echo "== it is killed, hangs, or says nonsense"
script hangs <<'END'
trap '' TERM INT
while :; do sleep 5; done
END
cp /tmp/web.img /tmp/hangs.img
cfg hangs "bootloader = '/opt/boot/hangs'"
xy create /tmp/hangs.cfg >/tmp/hangs.out 2>&1 &
creator=$!
check "it runs" wait_for '[ -n "$(pids_of "/opt/boot/[h]angs")" ]' 30
check "others are made meanwhile" xy create -q /tmp/web.cfg
check "and end" xy destroy web
# The process that waits for it is first.
kill -9 $(pids_of '/opt/boot/[h]angs' | tail -n 1)
wait $creator
check "it was killed: the create fails" grep 'hangs.cfg:4: bootloader: .* signal 9\|was killed' /tmp/hangs.out
check "nothing is left" same
start=$(now)
check "it hangs: the create fails in time" refused_with 'hangs did not end within 120 s' xy create -q /tmp/hangs.cfg
echo "given up after $(seconds_since "$start") s"
check "it does not run on" [ -z "$(pids_of '/opt/boot/[h]angs')" ]
check "nothing is left" same
xy create /tmp/hangs.cfg >/dev/null 2>&1 &
creator=$!
check "it runs" wait_for '[ -n "$(pids_of "/opt/boot/[h]angs")" ]' 30
kill_xylemd
wait $creator
check "it ends with the daemon" wait_for '[ -z "$(pids_of "/opt/boot/[h]angs")" ]' 10
start_xylemd
check "nothing is left" wait_for same 30
rm -f /tmp/hangs.img

# lies NAME PATTERN: what a bootloader does that is read from standard input is refused.
lies() {
    script "$1"
    cp /tmp/web.img "/tmp/$1.img"
    cfg "$1" "bootloader = '/opt/boot/$1'"
    check "$1" refused_with "$1.cfg:4: bootloader: /opt/boot/$1: $2" xy create -q "/tmp/$1.cfg"
    rm -f "/tmp/$1.img"
}
lies garbage 'its answer is not UTF-8' <<'END'
head -c 3000 /dev/urandom >$out
END
lies elsewhere 'it named a file outside of /run/out' <<'END'
printf 'kernel /usr/lib/passwd\0' >$out
END
lies links 'the kernel that it found' <<'END'
ln -s /etc/passwd /run/out/k; printf 'kernel /run/out/k\0' >$out
END
lies fifo 'the kernel that it found: not a regular file' <<'END'
mkfifo /run/out/k; printf 'kernel /run/out/k\0' >$out
END
lies junk 'the kernel that it found' <<'END'
head -c 300000 /dev/urandom >/run/out/k; printf 'kernel /run/out/k\0' >$out
END
lies endless 'failed with status 9: ' <<'END'
cat /dev/zero >$out; cat /dev/zero >/run/out/k; exit 9
END
check "nothing is left" same

echo "== broken file systems"
for seed in 1 2 3 4; do
    cp /tmp/web.img /tmp/broken.img
    for block in 1 2 3 5 8 13; do
        dd if=/dev/urandom of=/tmp/broken.img bs=512 seek=$((block * seed)) count=1 conv=notrunc 2>/dev/null
    done
    cfg broken "bootloader = 'pygrub'"
    if xy create -q /tmp/broken.cfg 2>/tmp/err; then
        check "boots in spite of it" xy destroy broken
    else
        cat /tmp/err
        check "one line says why" [ "$(wc -l </tmp/err)" = 1 ]
    fi
done
dd if=/dev/urandom of=/tmp/broken.img bs=1M count=4 2>/dev/null
check "no file system" refused_with 'broken.cfg:4: bootloader: .*/pygrub: failed with status 1: ' xy create -q /tmp/broken.cfg
check "nothing is left" same

echo "== PV GRUB is a kernel that boots the guest's own"
for kind in pv:grub-x86_64-xen.bin pvh:grub-i386-xen_pvh.bin; do
    cfg web "type = '${kind%%:*}'" "kernel = '/usr/lib/grub-xen/${kind#*:}'"
    menu web "xylem.mark=${kind%%:*}"
    rm -f "$(console_log web)"
    check "create ${kind%%:*}" xy create -q /tmp/web.cfg
    check "the guest boots its own kernel" console_wait web "xylem.mark=${kind%%:*}" 400
    check "destroy" xy destroy web
done
check "nothing is left" same
