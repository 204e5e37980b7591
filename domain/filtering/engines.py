"""Search engines that have a name for safe answers, as their operators publish them. Data only: a
client that is sent to the target by CNAME gets safe results for every search."""


def _words(text: str) -> list[str]:
    return text.split()


_GOOGLE = _words(
    "com ad ae com.af com.ag al am co.ao com.ar as at com.au az ba com.bd be bf bg com.bh bi bj "
    "com.bn com.bo com.br bs bt co.bw by com.bz ca cd cf cg ch ci co.ck cl cm cn com.co co.cr "
    "com.cu cv com.cy cz de dj dk dm com.do dz com.ec ee com.eg es com.et fi com.fj fm fr ga ge "
    "gg com.gh com.gi gl gm gr com.gt gy com.hk hn hr ht hu co.id ie co.il im co.in iq is it je "
    "com.jm jo co.jp co.ke com.kh ki kg co.kr com.kw kz la com.lb li lk co.ls lt lu lv com.ly "
    "co.ma md me mg mk ml com.mm mn com.mt mu mv mw com.mx com.my co.mz com.na com.ng com.ni ne nl "
    "no com.np nr nu co.nz com.om com.pa com.pe com.pg com.ph com.pk pl pn com.pr ps pt com.py "
    "com.qa ro ru rw com.sa com.sb sc se com.sg sh si sk com.sl sn so sm sr st com.sv td tg co.th "
    "com.tj tl tm tn to com.tr tt com.tw co.tz com.ua co.ug co.uk com.uy co.uz com.vc co.ve co.vi "
    "com.vn vu ws rs co.za co.zm co.zw cat"
)
_YANDEX = _words("by com com.tr kz ru uz")

ENGINES: dict[str, tuple[str, ...]] = {
    "forcesafesearch.google.com": tuple(f"www.google.{place}" for place in _GOOGLE),
    "restrict.youtube.com": (
        "www.youtube.com", "m.youtube.com", "youtubei.googleapis.com", "youtube.googleapis.com",
        "www.youtube-nocookie.com",
    ),
    "strict.bing.com": ("www.bing.com", "bing.com"),
    "safe.duckduckgo.com": ("duckduckgo.com", "www.duckduckgo.com", "start.duckduckgo.com"),
    "familysearch.yandex.ru": (
        "ya.ru", *(f"{www}yandex.{place}" for place in _YANDEX for www in ("", "www.")),
    ),
    "safesearch.pixabay.com": ("pixabay.com", "www.pixabay.com"),
    "forcesafe.search.brave.com": ("search.brave.com",),
    "strict-safe-search.ecosia.org": ("www.ecosia.org", "ecosia.org"),
    "safeapi.qwant.com": ("api.qwant.com",),
}  # fmt: skip
"""Hosts by the name that answers in their place."""
