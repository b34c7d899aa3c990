"""Words of the synthetic corpus, and the frames that join them.

A *frame* says which subjects a verb takes and with which complements. The frames under a heading
``word Lemma`` use that German lemma, so that one ambiguous English word stands in a context that
belongs to one of its senses. The tables are plain text, read once at import: ``heading: entries``,
where indented lines go on and ``_`` stands for a space.

- Nouns, by kind: ``lemma,gender,plural,english[,english plural]``. ``m*`` is a masculine noun whose
  singular looks like its plural in every case but the nominative (``m!`` = and it has no plural
  here), the plural ``-`` means singular only.
- Verbs: ``infinitive[,present,past,participle]=english[,past[,participle]][/particle]``, with ``|``
  after a separable prefix and ``*`` for the perfect with *sein*; missing forms are regular.
- Frames: ``subjects verb [complement]...;`` where a complement is ``case fillers`` or
  ``preposition+case[=english_preposition] fillers``; ``[adjective]`` before and ``<owner`` after
  the noun are part of the phrase; ``verb!`` keeps the English verb in its base form.
"""

from __future__ import annotations

from typing import NamedTuple

_NOUNS = """
person: Mann,m,Männer,man,men Frau,f,Frauen,woman,women Kind,n,Kinder,child,children
  Junge,m*,Jungen,boy Mädchen,n,Mädchen,girl Lehrer,m,Lehrer,teacher Arzt,m,Ärzte,doctor
  Nachbar,m*,Nachbarn,neighbour Bauer,m*,Bauern,farmer Bruder,m,Brüder,brother
  Schwester,f,Schwestern,sister Tochter,f,Töchter,daughter Sohn,m,Söhne,son
  Freund,m,Freunde,friend Dieb,m,Diebe,thief,thieves Fischer,m,Fischer,fisherman,fishermen
  Wanderer,m,Wanderer,hiker Mechaniker,m,Mechaniker,mechanic Spieler,m,Spieler,player
  Trainer,m,Trainer,coach,coaches Schiedsrichter,m,Schiedsrichter,referee
  Postbote,m*,Postboten,postman,postmen Pianist,m*,Pianisten,pianist König,m,Könige,king
  Arbeiter,m,Arbeiter,worker Pirat,m*,Piraten,pirate Gast,m,Gäste,guest Kellner,m,Kellner,waiter
  Richter,m,Richter,judge Tourist,m*,Touristen,tourist Holzfäller,m,Holzfäller,woodcutter
  Student,m*,Studenten,student Forscher,m,Forscher,scientist Matrose,m*,Matrosen,sailor
  Gärtner,m,Gärtner,gardener Maler,m,Maler,painter Mannschaft,f,Mannschaften,team
animal: Elefant,m*,Elefanten,elephant Ente,f,Enten,duck Vogel,m,Vögel,bird Hund,m,Hunde,dog
  Katze,f,Katzen,cat Pferd,n,Pferde,horse Fuchs,m,Füchse,fox,foxes Bär,m*,Bären,bear
  Insekt,n,Insekten,insect Fisch,m,Fische,fish,fish Fledermaus,f,-,bat Robbe,f,-,seal
  Kranich,m,-,crane
thing: Tür,f,Türen,door Fenster,n,Fenster,window Buch,n,Bücher,book Apfel,m,Äpfel,apple
  Kuchen,m,Kuchen,cake Auto,n,Autos,car Fahrrad,n,Fahrräder,bicycle Bild,n,Bilder,picture
  Hut,m,Hüte,hat Mantel,m,Mäntel,coat Stuhl,m,Stühle,chair Lampe,f,Lampen,lamp
  Kerze,f,Kerzen,candle Feuer,n,Feuer,fire Korb,m,Körbe,basket Rucksack,m,Rucksäcke,backpack
  Uhr,f,Uhren,clock Matratze,f,Matratzen,mattress,mattresses Boot,n,Boote,boat
  Schiff,n,Schiffe,ship Felsen,m,Felsen,rock Baum,m,Bäume,tree Blume,f,Blumen,flower
  Nest,n,Nester,nest Ball,m,Bälle,ball Tafel,f,Tafeln,board Umschlag,m,Umschläge,envelope
  Klavier,n,Klaviere,piano Computer,m,Computer,computer Suppe,f,Suppen,soup
  Dokument,n,Dokumente,document Balken,m,Balken,beam Zug,m,Züge,train Wand,f,Wände,wall
  Kleid,n,Kleider,dress,dresses Messer,n,Messer,knife,knives Tasche,f,Taschen,pocket
  Werkzeug,n,Werkzeuge,tool Geschenk,n,Geschenke,present Zeitung,f,Zeitungen,newspaper
  Feder,f,-,spring Streichholz,n,-,match Brief,m,-,letter Schlüssel,m,-,key Taste,f,-,key
  Schläger,m,-,bat Siegel,n,-,seal Kran,m,-,crane Stamm,m,-,trunk Koffer,m,-,trunk
  Rechnung,f,-,bill
idea: Wort,n,Wörter,word Zahl,f,Zahlen,number Antwort,f,Antworten,answer Gesetz,n,Gesetze,law
  Geschichte,f,Geschichten,story,stories Lied,n,Lieder,song Buchstabe,m!,Buchstaben,letter
  Spiel,n,-,match
body: Hand,f,Hände,hand Arm,m,Arme,arm Fuß,m,Füße,foot,feet Auge,n,Augen,eye Rüssel,m,-,trunk
  Schnabel,m,-,bill
place: Haus,n,Häuser,house Garten,m,Gärten,garden Fluss,m,Flüsse,river See,m,Seen,lake
  Wald,m,Wälder,forest Berg,m,Berge,mountain Stadt,f,Städte,city,cities Dorf,n,Dörfer,village
  Straße,f,Straßen,street Schule,f,Schulen,school Kirche,f,Kirchen,church,churches
  Museum,n,Museen,museum Stadion,n,Stadien,stadium Höhle,f,Höhlen,cave
  Restaurant,n,Restaurants,restaurant Hotel,n,Hotels,hotel Strand,m,Strände,beach,beaches
  Baustelle,f,Baustellen,building_site Bahnhof,m,Bahnhöfe,station Zimmer,n,Zimmer,room
  Küche,f,Küchen,kitchen Insel,f,Inseln,island Hafen,m,Häfen,harbour Sumpf,m,Sümpfe,swamp
  Markt,m,Märkte,market Bank,f,-,bank Ufer,n,-,bank Quelle,f,-,spring
mass: Wasser,n,-,water Geld,n,-,money Eis,n,-,ice Brot,n,-,bread Gold,n,-,gold
unique: Frühling,m,-,spring Licht,n,-,light Meer,n,-,sea Boden,m,-,ground Recht,n,-,right
"""

_VERBS = """
kaufen=buy,bought verkaufen=sell,sold sehen,sieht,sah,gesehen=see,saw,seen
lesen,liest,las,gelesen=read,read essen,isst,aß,gegessen=eat,ate,eaten kochen=cook malen=paint
öffnen=open schließen,schließt,schloss,geschlossen=close
schreiben,schreibt,schrieb,geschrieben=write,wrote,written
bringen,bringt,brachte,gebracht=bring,brought geben,gibt,gab,gegeben=give,gave,given
zeigen=show,showed,shown erzählen=tell,told besuchen=visit helfen,hilft,half,geholfen=help
spielen=play singen,singt,sang,gesungen=sing,sang,sung lachen=laugh
schlafen,schläft,schlief,geschlafen=sleep,slept laufen*,läuft,lief,gelaufen=run,ran,run
warten=wait arbeiten=work wohnen=live sitzen,sitzt,saß,gesessen=sit,sat
stehen,steht,stand,gestanden=stand,stood liegen,liegt,lag,gelegen=lie,lay,lain
fallen*,fällt,fiel,gefallen=fall,fell,fallen fahren*,fährt,fuhr,gefahren=drive,drove,driven
an|kommen*,kommt,kam,angekommen=arrive auf|räumen=tidy ein|laden,lädt,lud,eingeladen=invite
auf|wachen*=wake,woke,woken/up aus|rauben=rob,robbed
ab|heben,hebt,hob,abgehoben=withdraw,withdrew,withdrawn leihen,leiht,lieh,geliehen=lend,lent
rasten=rest schwimmen*,schwimmt,schwamm,geschwommen=swim,swam,swum an|legen=land überfluten=flood
blühen=bloom pflanzen=plant reisen*=travel,travelled ersetzen=replace
brechen*,bricht,brach,gebrochen=break,broke,broken spannen=tighten ölen=oil
trinken,trinkt,trank,getrunken=drink,drank,drunk finden,findet,fand,gefunden=find,found
fließen*,fließt,floss,geflossen=flow aus|trocknen*,trocknet,trocknete,ausgetrocknet=dry/up
ein|schalten=switch/on aus|schalten=switch/off blenden=dazzle tragen,trägt,trug,getragen=carry
heben,hebt,hob,gehoben=lift an|zünden=light,lit gewinnen,gewinnt,gewann,gewonnen=win,won
verlieren,verliert,verlor,verloren=lose,lost verfolgen=follow
ab|brechen,bricht,brach,abgebrochen=abandon besprechen,bespricht,besprach,besprochen=discuss
brennen,brennt,brannte,gebrannt=burn aus|blasen,bläst,blies,ausgeblasen=blow,blew,blown/out
stecken=put,put schicken=send,sent zerreißen,zerreißt,zerriss,zerrissen=tear,tore,torn
lernen=learn üben=practise vergessen,vergisst,vergaß,vergessen=forget,forgot,forgotten
erklären=explain auf|schließen,schließt,schloss,aufgeschlossen=unlock suchen=look drücken=press
klemmen=jam,jammed an|schlagen,schlägt,schlug,angeschlagen=strike,struck
fliegen*,fliegt,flog,geflogen=fly,flew,flown jagen=hunt beobachten=observe
schwingen,schwingt,schwang,geschwungen=swing,swung treffen,trifft,traf,getroffen=hit,hit
werfen,wirft,warf,geworfen=throw,threw,thrown fangen,fängt,fing,gefangen=catch,caught
füttern=feed,fed tauchen*=dive prüfen=check fälschen=forge schützen=protect bedienen=operate
reparieren=repair brüten=breed,bred bauen=build,built zersägen=cut,cut klettern*=climb
waschen,wäscht,wusch,gewaschen=wash streicheln=stroke packen=pack legen=place bezahlen=pay,paid
bekommen,bekommt,bekam,bekommen=receive putzen=clean halten,hält,hielt,gehalten=hold,held
kennen,kennt,kannte,gekannt=know,knew,known verletzen=injure untersuchen=examine
verteidigen=defend fordern=demand verweigern=deny sagen=say,said glauben=believe hoffen=hope
versuchen=try sein*,ist,war,gewesen=be,was,been
"""

_ADJECTIVES = """
person: jung,young alt,old freundlich,friendly müde,tired klug,clever reich,rich arm,poor
animal: jung,young alt,old hungrig,hungry wild,wild schwarz,black
thing: alt,old neu,new groß,big klein,small schön,beautiful billig,cheap rot,red
place: groß,big klein,small alt,old schön,beautiful ruhig,quiet
idea: alt,old neu,new schön,beautiful kurz,short
body: groß,big klein,small schmutzig,dirty
frame: leicht,light hell,light richtig,right recht,right erst,first falsch,wrong
"""

_CLASSES = """
PERSON: Mann Frau Kind Junge Mädchen Lehrer Arzt Nachbar Bauer Bruder Schwester Tochter Sohn Freund
  Student Gast
ANIMAL: Hund Katze Pferd Fuchs Bär Elefant
BIRD: Vogel Ente
BUY: Buch Apfel Kuchen Auto Fahrrad Bild Hut Mantel Stuhl Lampe Uhr Kleid Geschenk Blume
CARRY: Korb Rucksack Fahrrad Stuhl Mantel
ROOM: Zimmer Küche Haus
BODY: Hand Arm Fuß Auge
TOWN: Stadt Dorf Markt Museum Kirche Schule Restaurant Hotel Bahnhof
"""

_PREPOSITIONS = """
in,in auf,on an,at mit,with zu,to aus,from von,from bei,at für,for unter,under neben,beside
hinter,behind über,over durch,through vor,in_front_of ohne,without
"""

_FRAMES = """
plain: PERSON kaufen acc BUY; PERSON verkaufen acc BUY auf+dat=at Markt;
  PERSON sehen acc PERSON/ANIMAL/Auto/Boot/Schiff;
  PERSON lesen acc Buch/Zeitung/Geschichte in+dat Garten/Schule/Zug;
  PERSON essen acc Brot/Apfel/Kuchen/Suppe in+dat Küche/Restaurant/Hotel;
  PERSON kochen acc Suppe in+dat Küche; Maler/PERSON malen acc Bild/Haus/Baum/PERSON;
  PERSON öffnen acc Tür/Fenster; PERSON schließen acc Tür/Fenster/Buch;
  PERSON geben dat PERSON acc Apfel/Buch/Geschenk/Geld/Blume;
  PERSON zeigen dat PERSON acc Bild/Garten/Haus/Stadt;
  Lehrer/PERSON erzählen dat PERSON acc Geschichte; PERSON besuchen acc PERSON in+dat TOWN;
  PERSON helfen dat PERSON/ANIMAL;
  Kind/Junge/Mädchen spielen mit+dat Ball/Hund/Katze in+dat Garten;
  Kind/Mädchen/Frau singen acc Lied in+dat Kirche/Schule;
  PERSON lachen über+acc=about Geschichte/Bild/Hut; ANIMAL/PERSON schlafen in+dat Haus/Garten;
  ANIMAL/Kind/Junge laufen durch+acc Wald/Straße/Garten;
  PERSON warten auf+acc=for PERSON/Zug an+dat Bahnhof; Gärtner/Bauer arbeiten in+dat Garten;
  PERSON wohnen in+dat TOWN/Haus; ANIMAL sitzen hinter+dat Haus/Baum/Stuhl;
  ANIMAL liegen unter+dat Baum/Stuhl/Auto; Apfel/Buch/Uhr fallen von+dat Baum/Wand/Stuhl;
  PERSON fahren mit+dat Auto/Zug/Fahrrad zu+dat TOWN; PERSON/Zug ankommen an+dat Bahnhof/Hafen;
  PERSON aufräumen acc Zimmer/Küche/Garten;
  PERSON einladen acc PERSON in+acc=to Restaurant/Museum;
  PERSON beobachten acc Vogel/Pferd/Schiff vor+dat Haus/Hafen;
  Mechaniker/Bruder reparieren acc Auto/Fahrrad/Uhr/Boot;
  PERSON suchen acc=for PERSON/Hund/Katze/Hut in+dat Wald/Garten/Straße;
  PERSON sein pred jung/alt/freundlich/müde/klug/reich/arm;
  Haus/Stadt/Schule/Baum/Auto sein pred alt/neu/groß/klein/schön
bank Bank: Dieb/Pirat ausrauben acc Bank; PERSON bringen acc Geld/Gold zu+dat Bank;
  PERSON abheben acc Geld bei+dat=from Bank; PERSON arbeiten bei+dat Bank;
  Bank leihen dat PERSON acc Geld
bank Ufer: Fischer/Wanderer rasten an+dat=on Ufer<Fluss/See;
  PERSON/ANIMAL schwimmen zu+dat Ufer<Fluss/See; PERSON/Ente sitzen an+dat=on Ufer<Fluss/See;
  Boot/Schiff anlegen an+dat Ufer<Insel/Fluss; Fluss/Meer überfluten acc Ufer
spring Frühling: Blume/Baum blühen in+dat Frühling; Vogel singen in+dat Frühling;
  PERSON warten auf+acc=for Frühling; Bauer/Gärtner pflanzen acc Baum/Blume in+dat Frühling;
  PERSON reisen in+dat Frühling durch+acc Stadt/Wald
spring Feder: Mechaniker ersetzen acc Feder<Uhr/Matratze/Auto; Feder<Uhr/Matratze/Auto brechen;
  Mechaniker/Arbeiter spannen acc Feder mit+dat Werkzeug;
  Mechaniker/Arbeiter ölen acc Feder<Tür/Uhr
spring Quelle: Wanderer/ANIMAL trinken acc Wasser aus+dat Quelle;
  Wanderer finden acc Quelle in+dat Wald/Höhle; Wasser fließen aus+dat Quelle;
  Quelle austrocknen auf+dat Berg/Insel
light Licht: PERSON einschalten acc Licht in+dat ROOM; PERSON ausschalten acc Licht in+dat ROOM;
  Licht<Lampe/Auto/Schiff blenden acc PERSON/ANIMAL; PERSON sehen acc Licht hinter+dat Fenster/Tür
light leicht: PERSON tragen acc [leicht]CARRY; PERSON heben acc [leicht]CARRY;
  PERSON packen acc [leicht]Korb/Rucksack; CARRY sein pred leicht
light hell: PERSON wohnen in+dat [hell]ROOM; Maler/Bruder malen acc [hell]Wand/Tür;
  PERSON schlafen in+dat [hell]Zimmer; ROOM/Wand sein pred hell
light anzünden: PERSON anzünden! acc Kerze/Feuer/Lampe;
  PERSON anzünden! acc Kerze/Lampe in+dat Kirche/Küche/Zimmer;
  PERSON anzünden! acc Feuer an+dat Strand/Fluss
match Spiel: Mannschaft gewinnen acc Spiel; Mannschaft verlieren acc Spiel;
  PERSON verfolgen acc Spiel in+dat Stadion; Schiedsrichter abbrechen acc Spiel;
  Trainer besprechen acc Spiel mit+dat Mannschaft/Spieler
match Streichholz: PERSON anzünden acc Kerze/Feuer mit+dat Streichholz;
  Streichholz brennen in+dat Hand<PERSON; PERSON ausblasen acc Streichholz;
  Kind/Junge/Mädchen spielen mit+dat Streichholz
letter Brief: PERSON schreiben dat PERSON acc Brief; Postbote bringen dat PERSON acc Brief;
  PERSON öffnen acc Brief mit+dat Messer; PERSON stecken acc Brief in+acc=into Umschlag;
  PERSON schicken acc Brief an+acc=to PERSON; PERSON zerreißen acc Brief<PERSON
letter Buchstabe: Lehrer schreiben acc Buchstabe an+acc=on Tafel/Wand;
  Kind/Mädchen/Junge lernen acc [erst]Buchstabe<Wort;
  Kind/Mädchen/Junge üben acc Buchstabe in+dat Schule; Kind/Student vergessen acc Buchstabe<Wort;
  Lehrer erklären acc Buchstabe<Wort dat=to Kind/Mädchen/Student
key Schlüssel: PERSON verlieren acc Schlüssel<Haus/Auto/Zimmer;
  PERSON aufschließen acc Tür/Zimmer mit+dat Schlüssel; PERSON suchen acc=for Schlüssel<Haus/Auto;
  PERSON stecken acc Schlüssel in+acc=into Tasche
key Taste: Pianist drücken acc Taste<Klavier; PERSON drücken acc [falsch]Taste auf+dat Computer;
  Taste<Klavier/Computer klemmen; Pianist anschlagen acc Taste<Klavier
bat Fledermaus: Fledermaus fliegen aus+dat=out_of Höhle/Kirche;
  Fledermaus schlafen in+dat Höhle/Kirche; Fledermaus jagen acc Insekt;
  Forscher beobachten acc Fledermaus in+dat Höhle/Wald
bat Schläger: Spieler schwingen acc Schläger; Spieler treffen acc Ball mit+dat Schläger;
  Spieler werfen acc Schläger auf+acc=onto Boden; Trainer geben dat Spieler acc Schläger
seal Robbe: Robbe schwimmen in+dat Meer; Robbe fangen acc Fisch;
  Robbe liegen auf+dat Eis/Strand/Felsen; Matrose/Forscher/Kind füttern acc Robbe;
  Robbe tauchen unter+dat Eis
seal Siegel: König drücken acc Siegel auf+acc=onto Dokument; Richter prüfen acc Siegel<Dokument;
  Dieb fälschen acc Siegel<König; Siegel<König schützen acc Dokument
crane Kran: Kran heben acc Balken über+acc Straße/Haus; Arbeiter bedienen acc Kran;
  Kran stehen auf+dat Baustelle; Arbeiter/Mechaniker reparieren acc Kran auf+dat Baustelle
crane Kranich: Kranich brüten an+dat See/Sumpf; Kranich fliegen über+acc See/Wald/Dorf;
  Forscher beobachten acc Kranich an+dat See/Sumpf; Kranich bauen acc Nest in+dat Sumpf
trunk Stamm: Stamm<Baum fallen auf+acc=onto Straße/Haus/Auto;
  Kind/Junge/Katze klettern auf+acc=onto Stamm<Baum; Holzfäller zersägen acc Stamm<Baum;
  Vogel sitzen auf+dat Stamm<Baum
trunk Rüssel: Elefant heben acc Rüssel; Elefant trinken acc Wasser mit+dat Rüssel;
  Elefant waschen acc Kind/Auto/Fuß mit+dat Rüssel; Kind/Mädchen streicheln acc Rüssel<Elefant
trunk Koffer: Tourist packen acc Koffer; Tourist tragen acc Koffer zu+dat Bahnhof/Hotel;
  PERSON legen acc Kleid/Mantel/Hut in+acc=into Koffer;
  Tourist vergessen acc Koffer in+dat Zug/Hotel
bill Rechnung: Gast/Tourist bezahlen acc Rechnung in+dat Restaurant/Hotel;
  Kellner bringen dat Gast acc Rechnung; Gast prüfen acc Rechnung<Restaurant/Hotel;
  PERSON bekommen acc Rechnung von+dat Arzt/Hotel
bill Schnabel: BIRD öffnen acc Schnabel; BIRD fangen acc Fisch/Insekt mit+dat Schnabel;
  BIRD putzen acc Schnabel; BIRD halten acc Fisch/Insekt in+dat Schnabel
right richtig: Student/Kind finden acc [richtig]Antwort/Zahl/Wort;
  Lehrer/Student kennen acc [richtig]Antwort/Zahl; Student geben dat Lehrer acc [richtig]Antwort;
  Antwort/Zahl sein pred richtig
right recht: PERSON heben acc [recht]Hand/Arm/Fuß; PERSON/Spieler verletzen acc [recht]BODY;
  Arzt untersuchen acc [recht]BODY<PERSON; PERSON waschen acc [recht]Hand/Fuß
right Recht: Richter verteidigen acc Recht<Frau/Arbeiter/Kind;
  Gesetz schützen acc Recht<Frau/Arbeiter/Kind/Student;
  Arbeiter/Frau fordern acc Recht auf+acc=to Geld/Wasser;
  Richter/König verweigern dat PERSON acc Recht
"""


class Noun(NamedTuple):
    """A noun; `oblique` is the singular outside the nominative ("" = as the nominative)."""

    de: str
    gender: str  # m, f, n
    de_plural: str  # "" = singular only
    en: str
    en_plural: str
    kind: str  # person, animal, thing, idea, body, place, mass, unique
    oblique: str


class Verb(NamedTuple):
    """A verb: German finite forms (3rd person singular) without the separable prefix."""

    de: str  # infinitive with prefix; the lemma
    stem: str  # infinitive without prefix
    prefix: str
    present: str
    past: str
    participle: str  # with prefix
    auxiliary: str  # haben, sein
    en: str
    en_past: str
    en_participle: str
    particle: str  # "on" in "switch on"


class Slot(NamedTuple):
    """A place beside a verb: German case, prepositions and the nouns that may fill it."""

    case: str  # nom, acc, dat, gen; pred: a predicative adjective
    preposition: str = ""
    en_preposition: str = ""
    nouns: tuple[str, ...] = ()  # lemmas or class names; adjectives for pred
    adjective: str = ""  # a lemma that the noun phrase must have
    owners: tuple[str, ...] = ()  # nouns of a genitive attribute: "the bank of the river"


class Frame(NamedTuple):
    """A verb with the subjects and complements that make sense together."""

    subject: Slot
    verb: str
    slots: tuple[Slot, ...]
    base_form: bool = False  # only tenses whose English has the verb's base form


def pairs(text: str) -> list[tuple[str, str]]:
    """The (German, English) entries of 'jetzt,now am_Sonntag,on_Sunday'."""
    entries = (entry.replace("_", " ").partition(",") for entry in text.split())
    return [(german, english) for german, _, english in entries]


def _sections(table: str) -> dict[str, str]:
    rows = table.strip().replace("\n  ", " ").split("\n")
    return {heading: entries.strip() for heading, _, entries in (r.partition(":") for r in rows)}


def _read_noun(kind: str, entry: str) -> Noun:
    de, gender, plural, en, *rest = entry.replace("_", " ").split(",")
    shown = "" if plural == "-" or "!" in gender else plural
    oblique = plural if gender[1:] else ""
    return Noun(de, gender[0], shown, en, rest[0] if rest else en + "s", kind, oblique)


def _read_verb(entry: str) -> Verb:
    german, _, english = entry.partition("=")
    infinitive, *forms = german.split(",")
    prefix, _, stem = infinitive.rstrip("*").rpartition("|")
    english, _, particle = english.partition("/")
    en, *en_forms = english.split(",")
    if not en_forms:
        consonant_y = en.endswith("y") and en[-2] not in "aeiou"
        en_forms = [en[:-1] + "ied" if consonant_y else en + ("d" if en.endswith("e") else "ed")]
    return Verb(
        prefix + stem,
        stem,
        prefix,
        *(forms or _weak_forms(stem, prefix)),
        "sein" if "*" in infinitive else "haben",
        en,
        en_forms[0],
        en_forms[-1],
        particle,
    )


def _weak_forms(infinitive: str, prefix: str) -> tuple[str, str, str]:
    """Present, past and participle (with prefix) of a regular German verb."""
    stem = infinitive[:-2] if infinitive.endswith("en") else infinitive[:-1]
    link = "e" if stem.endswith(("t", "d", "fn", "chn")) else ""
    inseparable = stem.startswith(("be", "er", "ver", "zer", "über", "unter", "ent"))
    ge = "" if inseparable or infinitive.endswith("ieren") else "ge"
    return f"{stem}{link}t", f"{stem}{link}te", f"{prefix}{ge}{stem}{link}t"


def _read_slot(head: str, fillers: str) -> Slot:
    head, _, english = head.partition("=")
    preposition, _, case = head.rpartition("+")
    if preposition and not english:
        english = PREPOSITIONS[preposition]
    adjective, _, fillers = fillers.rpartition("]")
    names, _, owners = fillers.partition("<")
    return Slot(
        case,
        preposition,
        english.replace("_", " "),
        tuple(names.split("/")),
        adjective.removeprefix("["),
        tuple(owners.split("/")) if owners else (),
    )


def _read_frame(text: str) -> Frame:
    subject, verb, *rest = text.split()
    slots = tuple(map(_read_slot, rest[::2], rest[1::2]))
    return Frame(_read_slot("nom", subject), verb.rstrip("!"), slots, verb.endswith("!"))


PREPOSITIONS = dict(pairs(_PREPOSITIONS))
NOUNS = {
    noun.de: noun
    for kind, entries in _sections(_NOUNS).items()
    for noun in (_read_noun(kind, entry) for entry in entries.split())
}
VERBS = {verb.de: verb for verb in map(_read_verb, _VERBS.split())}
CLASSES = {name: entries.split() for name, entries in _sections(_CLASSES).items()}
ADJECTIVES: dict[str, str] = {}
"""German lemma -> English."""
USUAL_ADJECTIVES: dict[str, list[str]] = {}
"""Kind of noun -> the adjectives that it may take in any frame."""
for _kind, _entries in _sections(_ADJECTIVES).items():
    ADJECTIVES |= dict(pairs(_entries))
    USUAL_ADJECTIVES[_kind] = [german for german, _ in pairs(_entries)]

PLAIN_FRAMES: list[Frame] = []
SENSE_FRAMES: dict[tuple[str, str], list[Frame]] = {}
"""Frames of each (English word, German lemma)."""
AMBIGUOUS: dict[str, tuple[str, ...]] = {}
"""English word -> the German lemmas that it translates, its true senses."""
for _heading, _entries in _sections(_FRAMES).items():
    _frames = [_read_frame(text) for text in _entries.split(";")]
    _word, _, _lemma = _heading.partition(" ")
    if _lemma:
        SENSE_FRAMES[_word, _lemma] = _frames
        AMBIGUOUS[_word] = (*AMBIGUOUS.get(_word, ()), _lemma)
    else:
        PLAIN_FRAMES = _frames
