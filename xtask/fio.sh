#!/bin/bash
# Builds a static `fio` into the folder $1 from the distribution's source package, with apt's state
# in that folder, so that nothing in the system changes.
set -euo pipefail
mkdir -p "$1/work"/{lists/partial,archives/partial,aio}
cd "$1/work"
. /etc/os-release
case $ID in
    debian) site=http://deb.debian.org/debian parts=main ;;
    ubuntu) site=http://archive.ubuntu.com/ubuntu parts='main universe' ;;
    *) echo "no known source of packages for $ID" >&2 && exit 1 ;;
esac
signed="[signed-by=/usr/share/keyrings/$ID-archive-keyring.gpg]"
for kind in deb deb-src; do echo "$kind $signed $site $VERSION_CODENAME $parts"; done >sources.list
apt() {
    apt-get -qq -oDir::State::Lists="$PWD/lists" -oDir::Cache::archives="$PWD/archives" \
        -oDir::Cache::pkgcache= -oDir::Cache::srcpkgcache= -oDir::Etc::SourceParts=/dev/null \
        -oDir::Etc::SourceList="$PWD/sources.list" -oAPT::Sandbox::User=root "$@" >/dev/null
}
apt update
apt source --download-only fio
apt download libaio-dev
dpkg -x libaio-dev_*.deb aio
tar xf fio_*.orig.tar.[!a]*z
cd fio-*/
# Left out: what needs libraries that a static build has not.
disable=(native http rbd rados rdma numa pmem lex gfapi libnfs libzbc xnvme tcmalloc)
aio=$OLDPWD/aio/usr
{
    LDFLAGS=-L$(echo "$aio"/lib/*-linux-gnu) ./configure --build-static \
        "${disable[@]/#/--disable-}" --extra-cflags="-I$aio/include"
    make -j"$(nproc)" fio
    strip fio
} >../log 2>&1
for engine in io_uring libaio psync; do ./fio --enghelp | grep -qw "$engine"; done
# Last, so that an interrupted build is not taken for a finished one.
mv fio "$1/fio"
rm -rf "$1/work"
