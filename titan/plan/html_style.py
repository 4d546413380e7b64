"""Colours and spacing of the page: variables for light and dark, a class a colour, no file of its own to lose."""

STYLE = """
:root { --ground:#fcfcfb; --panel:#ffffff; --ink:#1d2227; --soft:#5d6770; --line:#dfe3e6; --good:#1a7f4b; --bad:#c0342b;
 --c0:#2f6fb2; --c1:#7aa6d6; --c2:#2a9d8f; --c3:#e9b44c; --c4:#d98032; --c5:#8d63b8; --c6:#c75b8e; --c7:#7d8a94;
 --c8:#b3bcc4; --c9:#4f5f4a; --f:#2f6fb2; --b:#2a9d8f; --i:#2a9d8f; --w:#e9b44c; --idle:#eef1f3; }
@media (prefers-color-scheme: dark) {
 :root { --ground:#14181c; --panel:#1b2025; --ink:#e6eaed; --soft:#9aa5ae; --line:#323a41;
 --good:#4cc38a; --bad:#f2756b;
 --c0:#5b9bdc; --c1:#39648f; --c2:#3dbdac; --c3:#e3b55a; --c4:#e08f4a; --c5:#a985d0; --c6:#d97ba8; --c7:#8b98a3;
 --c8:#56616a; --c9:#a3b899; --f:#5b9bdc; --b:#3dbdac; --i:#3dbdac; --w:#e3b55a; --idle:#232a30; } }
* { box-sizing:border-box; }
body { margin:0; background:var(--ground); color:var(--ink);
 font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif; }
main { max-width:1180px; margin:0 auto; padding:28px 24px 60px; }
h1 { font-size:22px; margin:0 0 18px; font-weight:650; }
h2 { font-size:16px; margin:0 0 12px; font-weight:650; }
section { background:var(--panel); border:1px solid var(--line); border-radius:10px; padding:18px 20px;
 margin-top:18px; }
.cards { display:grid; grid-template-columns:repeat(auto-fit,minmax(190px,1fr)); gap:12px; }
.card { background:var(--panel); border:1px solid var(--line); border-radius:10px; padding:12px 16px; }
.card .name, .card .more { color:var(--soft); font-size:13px; }
.card .value { font-size:26px; font-weight:650; font-variant-numeric:tabular-nums; line-height:1.25; }
.card.good { border-color:var(--good); } .card.good .value, .card.good .name { color:var(--good); }
.card.bad { border-color:var(--bad); } .card.bad .value, .card.bad .name { color:var(--bad); }
.facts { color:var(--soft); margin:14px 2px 0; } .facts b { color:var(--ink); font-weight:600; }
.verdict { margin:6px 2px 0; }
code { font:13px ui-monospace,Menlo,Consolas,monospace; }
.wide { overflow-x:auto; margin-top:14px; }
table { border-collapse:collapse; font-size:13px; min-width:50%; }
th { text-align:left; color:var(--soft); font-weight:500; }
th, td { padding:4px 22px 4px 0; border-bottom:1px solid var(--line); vertical-align:top; white-space:nowrap; }
.number { text-align:right; font-variant-numeric:tabular-nums; white-space:nowrap; }
.keys { display:flex; flex-wrap:wrap; gap:4px 16px; font-size:13px; color:var(--soft); margin-top:10px; }
.keys i { display:inline-block; width:11px; height:11px; border-radius:3px; margin-right:6px; vertical-align:-1px; }
svg { display:block; width:100%; height:auto; } svg text { font:12px system-ui,sans-serif; fill:var(--ink); }
svg text.soft { fill:var(--soft); } svg text.on { fill:#fff; font-size:10px; pointer-events:none; }
details { margin-top:12px; } summary { cursor:pointer; color:var(--soft); font-size:13px; }
"""
