# First VMs without a kernel file: images of each format, VMs made from them, what a hostile image reaches, a disk that moves
# to another SR.
# lab-addition: grub-xen
# lab-addition: qemu
. /lab/lib.sh
start_xylemd
mkdir -p /srv/in /srv/secret
echo "root:hash" >/srv/secret/shadow

# An image as clouds have it, as small as can be: a file system with a kernel, an initrd and GRUB's menu.
make_image() {
    modprobe ext4
    dd if=/dev/zero of="$1" bs=1M count=48 2>/dev/null
    mke2fs -q -F "$1"
    mkdir -p /mnt && mount -o loop "$1" /mnt || return 1
    mkdir -p /mnt/boot/grub
    cp /guest/vmlinuz /mnt/boot/vmlinuz
    cp /guest/initramfs /mnt/boot/initrd
    cat >/mnt/boot/grub/grub.cfg <<MENU
set timeout=0
menuentry guest {
    linux /boot/vmlinuz console=hvc0 $FAST_BOOT
    initrd /boot/initrd
}
MENU
    echo "hello from an image" >/mnt/hello.txt
    umount /mnt
}

check "an image is made" make_image /srv/in/small.img
sha256sum /srv/in/small.img | sed 's|/srv/in/||' >/srv/in/SHA256SUMS
qemu-img convert -O qcow2 -c /srv/in/small.img /srv/in/packed.qcow2
gzip -k /srv/in/small.img
ls -l /srv/in

echo "== what is refused"
check "no SR yet" refused_with "xy sr-create local file" xy image import /srv/in/small.img
check "sr-create" xy sr-create local file path=/srv/vdis
check "another checksum" refused_with "its SHA-256 is" xy image import /srv/in/small.img --checksum "$(printf %064d 0)"
qemu-img create -q -f qcow2 -b /srv/secret/shadow -F raw /srv/in/backed.qcow2 1M
check "a backing file" refused_with "has a backing file" xy image import /srv/in/backed.qcow2
qemu-img create -q -f qcow2 -o data_file=/srv/secret/data,data_file_raw=on /srv/in/elsewhere.qcow2 1M
check "an external data file" refused_with "keeps its data in another file" xy image import /srv/in/elsewhere.qcow2
qemu-img create -q -f qcow2 /srv/in/huge.qcow2 60T
check "a huge disk" refused_with "65970697666560 bytes" xy image import /srv/in/huge.qcow2
head -c 100000 /srv/in/packed.qcow2 >/srv/in/cut.qcow2
check "a file that is cut off" refused_with "damaged" xy image import /srv/in/cut.qcow2
check "nothing is left of them" [ "$(ls /srv/vdis)" = "" ]
check "and nothing in use" [ -z "$(find /run/xylem/sr /run/xylem/disks -type f 2>/dev/null)" ]

echo "== images"
check "raw, with a list beside it" xy image import /srv/in/small.img
echo "$lab_output"
check "the list was used" sh -c 'echo "$1" | grep -q "as SHA256SUMS says"' - "$lab_output"
check "qcow2" xy image import /srv/in/packed.qcow2 --name debian
check "packed" xy image import /srv/in/small.img.gz --name packed
xy image list
for name in debian packed; do
    check "$name has the same bytes" cmp /srv/vdis/image-small.raw "/srv/vdis/image-$name.raw"
done
check "an image is not written to" refused_with "cannot be written to" xy create -q /dev/null name=w kernel=/guest/vmlinuz memory=128 "disk=['local:image-small,,xvda,w']"
check "of one name there is one" refused_with "there is an image of this name" xy image import /srv/in/small.img

echo "== a VM"
ssh_key="ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ lab"
echo "$ssh_key" >/tmp/key.pub
check "no such image" refused_with "no such image" xy vm-create x --image none
check "a disk that is too small" refused_with "less than" xy vm-create x --image debian --disk 1M
start=$(now)
check "vm-create" xy vm-create web1 --image debian --type pv --memory 256 --disk 96M --ssh-key /tmp/key.pub \
    --ip 10.0.0.5/24 --gateway 10.0.0.1
echo "vm-create took $(seconds_since "$start") s"
xy vm-list
xy vdi-list
check "the guest boots from its disk" console_wait web1 "XYLEM-GUEST: init reached" 300
echo "its init after $(seconds_since "$start") s"
check "its disk has grown" console_wait web1 "disk_bytes=$((96 << 20))" 120
check "it is a clone of the image" console_wait web1 "disk_text=hello from an image" 60
check "it writes" console_wait web1 "disk_written=written by a guest" 60
dd if=/srv/vdis/web1-seed.raw bs=1 skip=$((16 * 2048 + 40)) count=6 2>/dev/null | grep -q cidata && echo "ok: the seed is called cidata"
check "the seed has the key" grep -q "$ssh_key" /srv/vdis/web1-seed.raw
check "one name, one VM" refused_with "there is a VM of this name" xy vm-create web1 --image debian
check "shutdown" xy shutdown -w web1
check "the image is as it was" cmp /srv/vdis/image-small.raw /srv/vdis/image-debian.raw

echo "== what fails leaves nothing"
before=$(ls /srv/vdis)
check "too much memory" sh -c '! xy vm-create big --image debian --type pv --memory 1T'
check "no disk is left" [ "$before" = "$(ls /srv/vdis)" ]
check "no VM either" sh -c '! xy vm-list | grep -q big'

echo "== as one file"
web1_uuid=$(xy vm-list | awk '$1 == "web1" { print $2 }')
check "export of a VM that is down" xy export web1 /srv/web1.xvm
ls -l /srv/web1.xvm
check "its name is taken" refused_with "there is a VM of this name" xy import /srv/web1.xvm
check "import under another" xy import /srv/web1.xvm --name web9
check "with another UUID" sh -c "! xy vm-list | grep web9 | grep -q $web1_uuid"
check "the same bytes" cmp /srv/vdis/web1.raw /srv/vdis/web9.raw
check "and its seed" cmp /srv/vdis/web1-seed.raw /srv/vdis/web9-1.raw
check "it starts" xy start web9
check "a VM that runs, where nothing copies in one moment" refused_with "its file system cannot copy it in one moment" xy export web9 /srv/web9.xvm
check "leaves no file" [ ! -e /srv/web9.xvm ]
check "and the VM running" sh -c "xy vm-list | grep web9 | grep -q running"
check "destroy" xy destroy web9
check "undefine" xy undefine web9
check "vdi-destroy" sh -c "xy vdi-destroy local:web9 && xy vdi-destroy local:web9-1"
before=$(ls /srv/vdis)
size=$(stat -c %s /srv/web1.xvm)
head -c $((size - 40)) /srv/web1.xvm >/srv/cut.xvm
check "a file that is cut off" refused_with "damaged" xy import /srv/cut.xvm --name cut
cp /srv/web1.xvm /srv/changed.xvm
printf 'X' | dd of=/srv/changed.xvm bs=1 seek=$((size / 2)) conv=notrunc 2>/dev/null
check "a file that was changed" refused_with "damaged" xy import /srv/changed.xvm --name changed
check "nothing is left of them" [ "$before" = "$(ls /srv/vdis)" ]

echo "== to another SR"
modprobe nbd nbds_max=16 max_part=0
# QEMU reads and writes past the cache, which no file system in memory allows.
mkdir -p /srv/other && truncate -s 300M /srv/other.img && mke2fs -q -F /srv/other.img && mount -t ext4 -o loop /srv/other.img /srv/other
rmdir /srv/other/lost+found
check "sr-create" xy sr-create other qcow2 path=/srv/other
check "a disk in use stays" sh -c 'xy start web1 && ! xy vdi-move local:web1 other'
check "shutdown" xy destroy web1
sum=$(md5sum </srv/vdis/web1.raw)
check "vdi-move" xy vdi-move local:web1 other
check "it has gone" [ ! -e /srv/vdis/web1.raw ]
qemu-img convert -O raw /srv/other/web1.qcow2 /tmp/moved.raw
check "with the same bytes" [ "$(md5sum </tmp/moved.raw)" = "$sum" ]

echo "== clone on write"
check "an image in qcow2" xy image import /srv/in/packed.qcow2 --name cow --sr other
start=$(now)
check "vm-create from it" xy vm-create web2 --image cow --type pv --memory 256 --disk 1G --no-start
echo "took $(seconds_since "$start") s"
check "its disk is small" [ "$(stat -c %s /srv/other/web2.qcow2)" -lt 1000000 ]
check "the image stays while it has clones" refused_with "web2" xy image remove cow
check "undefine" xy undefine web2
check "vdi-destroy" xy vdi-destroy other:web2
check "image remove" xy image remove cow

echo "== from a server"
ip link set dev lo up
busybox httpd -p 127.0.0.1:8000 -h /srv/in || fail "no server"
url=http://127.0.0.1:8000
part() { echo "/var/lib/xylem/downloads/$(printf %s "$1" | sha256sum | cut -c 1-32)"; }
check "no list, no checksum" refused_with "there is no SHA256SUMS or SHA512SUMS" sh -c \
    "rm -f /tmp/list; mkdir -p /srv/in/bare && ln /srv/in/packed.qcow2 /srv/in/bare/ && xy image pull $url/bare/packed.qcow2"
check "no such file" refused_with "no such file" xy image pull $url/none.img --unverified --sr local
check "no server" refused_with "refused" xy image pull http://127.0.0.1:9/a.img --unverified --sr local
check "a download that was interrupted" sh -c "head -c 1000000 /srv/in/small.img >$(part $url/small.img)"
check "image pull" xy image pull $url/small.img --name pulled --sr local
echo "$lab_output"
check "whole" cmp /srv/vdis/image-small.raw /srv/vdis/image-pulled.raw
check "image remove" xy image remove pulled
check "a part of another file" sh -c "head -c 1000000 /dev/urandom >$(part $url/small.img)"
check "is noticed" sh -c "xy image pull $url/small.img --name pulled --sr local 2>&1 | grep -q 'its SHA-256 is'"
check "and not kept" [ -z "$(ls /var/lib/xylem/downloads)" ]
check "a file that is too large" sh -c "xy image pull $url/small.img --name pulled --sr local --max 1M 2>&1 | grep -q 'more than 1048576 bytes'"
xy image list

echo "== a killed client"
dd if=/dev/urandom of=/srv/in/random.img bs=1M count=32 2>/dev/null
xy image import /srv/in/random.img --name random --sr local >/tmp/random.out 2>&1 &
importer=$!
wait_for '[ -e /srv/vdis/image-random.raw ]' 60
kill -9 $importer
wait_for '[ -z "$(losetup -a | grep image-random)" ]' 60 || losetup -a
check "its disk is detached" [ -z "$(losetup -a | grep image-random)" ]
check "it is no image" sh -c '! xy image list | grep -q random'
check "the next import takes its place" xy image import /srv/in/random.img --name random --sr local
check "whole" cmp /srv/in/random.img /srv/vdis/image-random.raw
check "image remove" xy image remove random small debian packed
xy image list
