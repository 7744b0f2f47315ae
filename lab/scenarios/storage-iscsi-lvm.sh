# lab-addition: lvm
# lab-addition: iscsi
# The storage suite on logical volumes on a LUN of a real iSCSI target.
. /lab/lib.sh
. /lab/storage.sh
. /lab/storage-lvm.sh
. /lab/storage-iscsi.sh
luns="/tmp/lun1 /tmp/lun2"
for file in $luns; do truncate -s 128M "$file"; done
start_iscsi
start_xylemd

storage_read=s:one
kills_of_thick
can() {
    case $1 in
        # Thick volumes are copied and zeroed, not shared.
        snapshot | snapshot_while_written | grow_while_written | kill_driver | outlive_*) return 1 ;;
    esac
}
storage_suite lvm server=127.0.0.1 target=$target lun=1
no_group_is_left
check "no session is left" [ -z "$(sessions)" ]

echo "== two SRs with one session"
check "sr-create luns" xy sr-create luns iscsi server=127.0.0.1 target=$target
check "sr-create volumes" xy sr-create volumes lvm server=127.0.0.1 target=$target lun=2
check "one session" [ "$(sessions | wc -l)" = 1 ]
check "a volume" xy vdi-create volumes:one 4M
unikernel_cfg uni "type = 'pv'" "disk = ['volumes:one,,xvda,w']"
check "create uni" xy create -q /tmp/uni.cfg
unikernel_cfg thief "type = 'pv'" "disk = ['luns:lun2,,xvda,w']"
check "no VM gets the LUN under the volume" refused_with 'luns:lun2: .* lies on it' xy create -q /tmp/thief.cfg
check "destroy uni" xy destroy uni
check "sr-forget luns" xy sr-forget luns
check "the other still has its session" [ "$(sessions | wc -l)" = 1 ]
check "vdi-destroy" xy vdi-destroy volumes:one
check "sr-destroy volumes" xy sr-destroy volumes
check "no session is left" [ -z "$(sessions)" ]
