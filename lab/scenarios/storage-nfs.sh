# lab-addition: nfs
# The storage suite on a folder of a real NFS server, the kernel's own, over loopback.
. /lab/lib.sh
. /lab/storage.sh
file_system /srv
mkdir /srv/vdis
modprobe -a nfsd nfs nfsv4 || fail "no NFS"
mkdir -p /var/lib/nfs/v4recovery
touch /var/lib/nfs/etab /var/lib/nfs/rmtab
printf '%s\n' 'tcp tpi_cots_ord v inet tcp - -' 'tcp6 tpi_cots_ord v inet6 tcp - -' >/etc/netconfig
echo 'nfs 2049/tcp' >/etc/services
echo '/srv 127.0.0.1(rw,fsid=0,no_root_squash,no_subtree_check,insecure)' >/etc/exports
mount -t nfsd nfsd /proc/fs/nfsd || fail "no nfsd file system"
exportfs -r || fail "nothing is exported"
rpc.mountd -N 3 || fail "no mountd"

find_again() {
    rpc.nfsd -N 3 -H 127.0.0.1 2 || fail "no NFS server"
    # No client that it does not know has anything to claim.
    echo Y >/proc/fs/nfsd/v4_end_grace
}
lose() { rpc.nfsd 0; }
echo 10 >/proc/fs/nfsd/nfsv4leasetime
echo 10 >/proc/fs/nfsd/nfsv4gracetime
find_again
start_xylemd

# By the server's own side.
put() { dd if=/guest/disk.img "of=/srv/vdis/${1#*:}.raw" conv=notrunc,fsync 2>/dev/null; }
text() { mounted_text "/srv/vdis/${1#*:}.raw" loop; }
fill_up() { dd if=/dev/urandom of=/srv/filler bs=64k 2>/dev/null; }
free_up() { rm /srv/filler; }
can() {
    case $1 in
        # The server's ext4 cannot share blocks.
        snapshot_while_written | kill_driver | outlive_*) return 1 ;;
    esac
}

# NFS has no renameat2: a second name is made, and the first taken away.
kills_create="ftruncate:1 renameat2:1 unlink:1"
storage_suite nfs server=127.0.0.1 serverpath=/vdis
check "nothing is mounted" sh -c '! grep -q /run/xylem/mount /proc/self/mounts'
