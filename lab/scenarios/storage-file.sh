# The storage suite on raw files in a folder of an ext4 file system, under loop devices.
. /lab/lib.sh
. /lab/storage.sh
. /lab/storage-files.sh
start_xylemd

storage_suite file path=/srv/vdis

echo "== direct I/O, and what is not ours"
check "sr-create" xy sr-create s file path=/srv/vdis
check "vdi-create" xy vdi-create s:one 4M
put s:one
vdi_unikernel uni s:one w
check "create uni" xy create -q /tmp/uni.cfg
loop=$(basename "$(xy vdi-list --json s | sed -n 's/.*"device": "\(.*\)".*/\1/p')")
check "the page cache is bypassed" [ "$(cat "/sys/block/$loop/loop/dio")" = 1 ]
check "destroy uni" xy destroy uni
check "vdi-destroy" xy vdi-destroy s:one
check "sr-forget" xy sr-forget s
check "its folder stays" [ -d /srv/vdis ]
check "sr-introduce" xy sr-introduce t file path=/srv/vdis
check "sr-destroy" xy sr-destroy t
