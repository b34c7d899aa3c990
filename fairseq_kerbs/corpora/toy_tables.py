"""Tables of the embedded corpus, as text (`toy_lexicon` reads them).

Nouns: ``lemma,gender,plural,english[,english plural]``; ``m*`` is a masculine noun whose
singular looks like its plural in every case but the nominative (``m!`` = and it has no plural
here); ``-`` means singular only; ``_`` a space.
Verbs: ``infinitive present,past,participle auxiliary english`` with ``|`` after a separable prefix,
``-`` for a regular verb, h/s for haben/sein, and ``/particle`` after the English verb.
Frames: ``subjects | verb | complement | ...`` with ``case fillers`` or
``preposition+case=english_preposition fillers``; ``[adjective]`` before and ``<owner`` after the
noun are part of the phrase; ``verb!`` keeps the English verb in its base form.
"""

NOUNS = """
person Mann,m,Männer,man,men Frau,f,Frauen,woman,women Kind,n,Kinder,child,children
person Junge,m*,Jungen,boy Mädchen,n,Mädchen,girl Lehrer,m,Lehrer,teacher Arzt,m,Ärzte,doctor
person Nachbar,m*,Nachbarn,neighbour Bauer,m*,Bauern,farmer Bruder,m,Brüder,brother
person Schwester,f,Schwestern,sister Tochter,f,Töchter,daughter Sohn,m,Söhne,son
person Freund,m,Freunde,friend Dieb,m,Diebe,thief,thieves Fischer,m,Fischer,fisherman,fishermen
person Wanderer,m,Wanderer,hiker Mechaniker,m,Mechaniker,mechanic Spieler,m,Spieler,player
person Trainer,m,Trainer,coach,coaches Schiedsrichter,m,Schiedsrichter,referee
person Postbote,m*,Postboten,postman,postmen Pianist,m*,Pianisten,pianist König,m,Könige,king
person Arbeiter,m,Arbeiter,worker Pirat,m*,Piraten,pirate Gast,m,Gäste,guest
person Kellner,m,Kellner,waiter Richter,m,Richter,judge Tourist,m*,Touristen,tourist
person Holzfäller,m,Holzfäller,woodcutter Student,m*,Studenten,student Forscher,m,Forscher,scientist
person Matrose,m*,Matrosen,sailor Gärtner,m,Gärtner,gardener Maler,m,Maler,painter
animal Elefant,m*,Elefanten,elephant Ente,f,Enten,duck Vogel,m,Vögel,bird Hund,m,Hunde,dog
animal Katze,f,Katzen,cat Pferd,n,Pferde,horse Fuchs,m,Füchse,fox,foxes Bär,m*,Bären,bear
animal Insekt,n,Insekten,insect Fisch,m,Fische,fish,fish
animal Fledermaus,f,-,bat Robbe,f,-,seal Kranich,m,-,crane
thing Tür,f,Türen,door Fenster,n,Fenster,window Buch,n,Bücher,book Apfel,m,Äpfel,apple
thing Kuchen,m,Kuchen,cake Auto,n,Autos,car Fahrrad,n,Fahrräder,bicycle Bild,n,Bilder,picture
thing Hut,m,Hüte,hat Mantel,m,Mäntel,coat Stuhl,m,Stühle,chair Lampe,f,Lampen,lamp
thing Kerze,f,Kerzen,candle Feuer,n,Feuer,fire Korb,m,Körbe,basket Rucksack,m,Rucksäcke,backpack
thing Uhr,f,Uhren,clock Matratze,f,Matratzen,mattress,mattresses Boot,n,Boote,boat
thing Schiff,n,Schiffe,ship Felsen,m,Felsen,rock Baum,m,Bäume,tree Blume,f,Blumen,flower
thing Nest,n,Nester,nest Ball,m,Bälle,ball
person Mannschaft,f,Mannschaften,team
idea Wort,n,Wörter,word
thing Tafel,f,Tafeln,board Umschlag,m,Umschläge,envelope Klavier,n,Klaviere,piano
thing Computer,m,Computer,computer Suppe,f,Suppen,soup
idea Zahl,f,Zahlen,number Antwort,f,Antworten,answer Gesetz,n,Gesetze,law
body Hand,f,Hände,hand Arm,m,Arme,arm Fuß,m,Füße,foot,feet Auge,n,Augen,eye
thing Dokument,n,Dokumente,document Balken,m,Balken,beam Zug,m,Züge,train
thing Wand,f,Wände,wall Kleid,n,Kleider,dress,dresses Messer,n,Messer,knife,knives
thing Tasche,f,Taschen,pocket Werkzeug,n,Werkzeuge,tool
idea Geschichte,f,Geschichten,story,stories Lied,n,Lieder,song
thing Geschenk,n,Geschenke,present Zeitung,f,Zeitungen,newspaper
thing Feder,f,-,spring Streichholz,n,-,match Brief,m,-,letter
idea Buchstabe,m!,Buchstaben,letter
thing Schlüssel,m,-,key Taste,f,-,key Schläger,m,-,bat Siegel,n,-,seal Kran,m,-,crane
thing Stamm,m,-,trunk Koffer,m,-,trunk Rechnung,f,-,bill
body Rüssel,m,-,trunk Schnabel,m,-,bill
idea Spiel,n,-,match
place Haus,n,Häuser,house Garten,m,Gärten,garden Fluss,m,Flüsse,river See,m,Seen,lake
place Wald,m,Wälder,forest Berg,m,Berge,mountain Stadt,f,Städte,city,cities Dorf,n,Dörfer,village
place Straße,f,Straßen,street Schule,f,Schulen,school Kirche,f,Kirchen,church,churches
place Museum,n,Museen,museum Stadion,n,Stadien,stadium Höhle,f,Höhlen,cave
place Restaurant,n,Restaurants,restaurant Hotel,n,Hotels,hotel Strand,m,Strände,beach,beaches
place Baustelle,f,Baustellen,building_site Bahnhof,m,Bahnhöfe,station Zimmer,n,Zimmer,room
place Küche,f,Küchen,kitchen Insel,f,Inseln,island Hafen,m,Häfen,harbour Sumpf,m,Sümpfe,swamp
place Markt,m,Märkte,market Bank,f,-,bank Ufer,n,-,bank Quelle,f,-,spring
mass Wasser,n,-,water Geld,n,-,money Eis,n,-,ice Brot,n,-,bread Gold,n,-,gold
unique Frühling,m,-,spring Licht,n,-,light Meer,n,-,sea Boden,m,-,ground Recht,n,-,right
"""

ADJECTIVES = {
    "person": "jung,young alt,old freundlich,friendly müde,tired klug,clever reich,rich arm,poor",
    "animal": "jung,young alt,old hungrig,hungry wild,wild schwarz,black",
    "thing": "alt,old neu,new groß,big klein,small schön,beautiful billig,cheap rot,red",
    "place": "groß,big klein,small alt,old schön,beautiful ruhig,quiet",
    "idea": "alt,old neu,new schön,beautiful kurz,short",
    "body": "groß,big klein,small schmutzig,dirty",
    "mass": "",
    "unique": "",
    "frame": "leicht,light hell,light richtig,right recht,right erst,first falsch,wrong kalt,cold "
    "schwer,heavy lang,long",
}

CLASSES = {
    "PERSON": "Mann Frau Kind Junge Mädchen Lehrer Arzt Nachbar Bauer Bruder Schwester Tochter "
    "Sohn Freund Student Gast",
    "ANIMAL": "Hund Katze Pferd Fuchs Bär Elefant",
    "BIRD": "Vogel Ente",
    "BUY": "Buch Apfel Kuchen Auto Fahrrad Bild Hut Mantel Stuhl Lampe Uhr Kleid Geschenk Blume",
    "CARRY": "Korb Rucksack Fahrrad Stuhl Mantel",
    "ROOM": "Zimmer Küche Haus",
    "BODY": "Hand Arm Fuß Auge",
    "TOWN": "Stadt Dorf Markt Museum Kirche Schule Restaurant Hotel Bahnhof",
}

PREPOSITIONS = {
    "in": "in", "auf": "on", "an": "at", "mit": "with", "zu": "to", "aus": "from", "von": "from",
    "bei": "at", "für": "for", "unter": "under", "neben": "beside", "hinter": "behind",
    "über": "over", "durch": "through", "vor": "in_front_of", "ohne": "without",
}  # fmt: skip

VERBS = """
kaufen - h buy,bought
verkaufen - h sell,sold
sehen sieht,sah,gesehen h see,saw,seen
lesen liest,las,gelesen h read,read
essen isst,aß,gegessen h eat,ate,eaten
kochen - h cook
malen - h paint
öffnen - h open
schließen schließt,schloss,geschlossen h close
schreiben schreibt,schrieb,geschrieben h write,wrote,written
bringen bringt,brachte,gebracht h bring,brought
geben gibt,gab,gegeben h give,gave,given
zeigen - h show,showed,shown
erzählen - h tell,told
besuchen - h visit
helfen hilft,half,geholfen h help
spielen - h play
singen singt,sang,gesungen h sing,sang,sung
lachen - h laugh
schlafen schläft,schlief,geschlafen h sleep,slept
laufen läuft,lief,gelaufen s run,ran,run
warten - h wait
arbeiten - h work
wohnen - h live
sitzen sitzt,saß,gesessen h sit,sat
stehen steht,stand,gestanden h stand,stood
liegen liegt,lag,gelegen h lie,lay,lain
fallen fällt,fiel,gefallen s fall,fell,fallen
fahren fährt,fuhr,gefahren s drive,drove,driven
an|kommen kommt,kam,angekommen s arrive
auf|räumen - h tidy
ein|laden lädt,lud,eingeladen h invite
auf|wachen - s wake,woke,woken/up
aus|rauben - h rob,robbed
ab|heben hebt,hob,abgehoben h withdraw,withdrew,withdrawn
leihen leiht,lieh,geliehen h lend,lent
rasten - h rest
schwimmen schwimmt,schwamm,geschwommen s swim,swam,swum
an|legen - h land
überfluten - h flood
blühen - h bloom
pflanzen - h plant
reisen - s travel,travelled
ersetzen - h replace
brechen bricht,brach,gebrochen s break,broke,broken
spannen - h tighten
ölen - h oil
trinken trinkt,trank,getrunken h drink,drank,drunk
finden findet,fand,gefunden h find,found
fließen fließt,floss,geflossen s flow
aus|trocknen trocknet,trocknete,ausgetrocknet s dry/up
ein|schalten - h switch/on
aus|schalten - h switch/off
blenden - h dazzle
tragen trägt,trug,getragen h carry
heben hebt,hob,gehoben h lift
an|zünden - h light,lit
gewinnen gewinnt,gewann,gewonnen h win,won
verlieren verliert,verlor,verloren h lose,lost
verfolgen - h follow
ab|brechen bricht,brach,abgebrochen h abandon
besprechen bespricht,besprach,besprochen h discuss
brennen brennt,brannte,gebrannt h burn
aus|blasen bläst,blies,ausgeblasen h blow,blew,blown/out
stecken - h put,put
schicken - h send,sent
zerreißen zerreißt,zerriss,zerrissen h tear,tore,torn
lernen - h learn
üben - h practise
vergessen vergisst,vergaß,vergessen h forget,forgot,forgotten
erklären - h explain
auf|schließen schließt,schloss,aufgeschlossen h unlock
suchen - h look
drücken - h press
klemmen - h jam,jammed
an|schlagen schlägt,schlug,angeschlagen h strike,struck
fliegen fliegt,flog,geflogen s fly,flew,flown
jagen - h hunt
beobachten - h observe
schwingen schwingt,schwang,geschwungen h swing,swung
treffen trifft,traf,getroffen h hit,hit
werfen wirft,warf,geworfen h throw,threw,thrown
fangen fängt,fing,gefangen h catch,caught
füttern - h feed,fed
tauchen - s dive
prüfen - h check
fälschen - h forge
schützen - h protect
bedienen - h operate
reparieren - h repair
brüten - h breed,bred
bauen - h build,built
zersägen - h cut,cut
klettern - s climb
waschen wäscht,wusch,gewaschen h wash
streicheln - h stroke
packen - h pack
legen - h place
bezahlen - h pay,paid
bekommen bekommt,bekam,bekommen h receive
putzen - h clean
halten hält,hielt,gehalten h hold,held
kennen kennt,kannte,gekannt h know,knew,known
verletzen - h injure
untersuchen - h examine
verteidigen - h defend
fordern - h demand
verweigern - h deny
sagen - h say,said
glauben - h believe
hoffen - h hope
versuchen - h try
sein ist,war,gewesen s be,was,been
"""

FRAMES = """
PERSON | kaufen | acc BUY
PERSON | verkaufen | acc BUY | auf+dat=at Markt
PERSON | sehen | acc PERSON/ANIMAL/Auto/Boot/Schiff
PERSON | lesen | acc Buch/Zeitung/Geschichte | in+dat Garten/Schule/Zug
PERSON | essen | acc Brot/Apfel/Kuchen/Suppe | in+dat Küche/Restaurant/Hotel
PERSON | kochen | acc Suppe | in+dat Küche
Maler/PERSON | malen | acc Bild/Haus/Baum/PERSON
PERSON | öffnen | acc Tür/Fenster
PERSON | schließen | acc Tür/Fenster/Buch
PERSON | geben | dat PERSON | acc Apfel/Buch/Geschenk/Geld/Blume
PERSON | zeigen | dat PERSON | acc Bild/Garten/Haus/Stadt
Lehrer/PERSON | erzählen | dat PERSON | acc Geschichte
PERSON | besuchen | acc PERSON | in+dat TOWN
PERSON | helfen | dat PERSON/ANIMAL
Kind/Junge/Mädchen | spielen | mit+dat Ball/Hund/Katze | in+dat Garten
Kind/Mädchen/Frau | singen | acc Lied | in+dat Kirche/Schule
PERSON | lachen | über+acc=about Geschichte/Bild/Hut
ANIMAL/PERSON | schlafen | in+dat Haus/Garten
ANIMAL/Kind/Junge | laufen | durch+acc Wald/Straße/Garten
PERSON | warten | auf+acc=for PERSON/Zug | an+dat Bahnhof
Gärtner/Bauer | arbeiten | in+dat Garten
PERSON | wohnen | in+dat TOWN/Haus
ANIMAL | sitzen | hinter+dat Haus/Baum/Stuhl
ANIMAL | liegen | unter+dat Baum/Stuhl/Auto
Apfel/Buch/Uhr | fallen | von+dat Baum/Wand/Stuhl
PERSON | fahren | mit+dat Auto/Zug/Fahrrad | zu+dat TOWN
PERSON/Zug | ankommen | an+dat Bahnhof/Hafen
PERSON | aufräumen | acc Zimmer/Küche/Garten
PERSON | einladen | acc PERSON | in+acc=to Restaurant/Museum
PERSON | beobachten | acc Vogel/Pferd/Schiff | vor+dat Haus/Hafen
Mechaniker/Bruder | reparieren | acc Auto/Fahrrad/Uhr/Boot
PERSON | suchen | acc=for PERSON/Hund/Katze/Hut | in+dat Wald/Garten/Straße
PERSON | sein | pred jung/alt/freundlich/müde/klug/reich/arm
Haus/Stadt/Schule/Baum/Auto | sein | pred alt/neu/groß/klein/schön
= bank: Bank
Dieb/Pirat | ausrauben | acc Bank
PERSON | bringen | acc Geld/Gold | zu+dat Bank
PERSON | abheben | acc Geld | bei+dat=from Bank
PERSON | arbeiten | bei+dat Bank
Bank | leihen | dat PERSON | acc Geld
= bank: Ufer
Fischer/Wanderer | rasten | an+dat=on Ufer<Fluss/See
PERSON/ANIMAL | schwimmen | zu+dat Ufer<Fluss/See
PERSON/Ente | sitzen | an+dat=on Ufer<Fluss/See
Boot/Schiff | anlegen | an+dat Ufer<Insel/Fluss
Fluss/Meer | überfluten | acc Ufer
= spring: Frühling
Blume/Baum | blühen | in+dat Frühling
Vogel | singen | in+dat Frühling
PERSON | warten | auf+acc=for Frühling
Bauer/Gärtner | pflanzen | acc Baum/Blume | in+dat Frühling
PERSON | reisen | in+dat Frühling | durch+acc Stadt/Wald
= spring: Feder
Mechaniker | ersetzen | acc Feder<Uhr/Matratze/Auto
Feder<Uhr/Matratze/Auto | brechen
Mechaniker/Arbeiter | spannen | acc Feder | mit+dat Werkzeug
Mechaniker/Arbeiter | ölen | acc Feder<Tür/Uhr
= spring: Quelle
Wanderer/ANIMAL | trinken | acc Wasser | aus+dat Quelle
Wanderer | finden | acc Quelle | in+dat Wald/Höhle
Wasser | fließen | aus+dat Quelle
Quelle | austrocknen | auf+dat Berg/Insel
= light: Licht
PERSON | einschalten | acc Licht | in+dat ROOM
PERSON | ausschalten | acc Licht | in+dat ROOM
Licht<Lampe/Auto/Schiff | blenden | acc PERSON/ANIMAL
PERSON | sehen | acc Licht | hinter+dat Fenster/Tür
= light: leicht
PERSON | tragen | acc [leicht]CARRY
PERSON | heben | acc [leicht]CARRY
PERSON | packen | acc [leicht]Korb/Rucksack
CARRY | sein | pred leicht
= light: hell
PERSON | wohnen | in+dat [hell]ROOM
Maler/Bruder | malen | acc [hell]Wand/Tür
PERSON | schlafen | in+dat [hell]Zimmer
ROOM/Wand | sein | pred hell
= light: anzünden
PERSON | anzünden! | acc Kerze/Feuer/Lampe
PERSON | anzünden! | acc Kerze/Lampe | in+dat Kirche/Küche/Zimmer
PERSON | anzünden! | acc Feuer | an+dat Strand/Fluss
= match: Spiel
Mannschaft | gewinnen | acc Spiel
Mannschaft | verlieren | acc Spiel
PERSON | verfolgen | acc Spiel | in+dat Stadion
Schiedsrichter | abbrechen | acc Spiel
Trainer | besprechen | acc Spiel | mit+dat Mannschaft/Spieler
= match: Streichholz
PERSON | anzünden | acc Kerze/Feuer | mit+dat Streichholz
Streichholz | brennen | in+dat Hand<PERSON
PERSON | ausblasen | acc Streichholz
Kind/Junge/Mädchen | spielen | mit+dat Streichholz
= letter: Brief
PERSON | schreiben | dat PERSON | acc Brief
Postbote | bringen | dat PERSON | acc Brief
PERSON | öffnen | acc Brief | mit+dat Messer
PERSON | stecken | acc Brief | in+acc=into Umschlag
PERSON | schicken | acc Brief | an+acc=to PERSON
PERSON | zerreißen | acc Brief<PERSON
= letter: Buchstabe
Lehrer | schreiben | acc Buchstabe | an+acc=on Tafel/Wand
Kind/Mädchen/Junge | lernen | acc [erst]Buchstabe<Wort
Kind/Mädchen/Junge | üben | acc Buchstabe | in+dat Schule
Kind/Student | vergessen | acc Buchstabe<Wort
Lehrer | erklären | acc Buchstabe<Wort | dat=to Kind/Mädchen/Student
= key: Schlüssel
PERSON | verlieren | acc Schlüssel<Haus/Auto/Zimmer
PERSON | aufschließen | acc Tür/Zimmer | mit+dat Schlüssel
PERSON | suchen | acc=for Schlüssel<Haus/Auto
PERSON | stecken | acc Schlüssel | in+acc=into Tasche
= key: Taste
Pianist | drücken | acc Taste<Klavier
PERSON | drücken | acc [falsch]Taste | auf+dat Computer
Taste<Klavier/Computer | klemmen
Pianist | anschlagen | acc Taste<Klavier
= bat: Fledermaus
Fledermaus | fliegen | aus+dat=out_of Höhle/Kirche
Fledermaus | schlafen | in+dat Höhle/Kirche
Fledermaus | jagen | acc Insekt
Forscher | beobachten | acc Fledermaus | in+dat Höhle/Wald
= bat: Schläger
Spieler | schwingen | acc Schläger
Spieler | treffen | acc Ball | mit+dat Schläger
Spieler | werfen | acc Schläger | auf+acc=onto Boden
Trainer | geben | dat Spieler | acc Schläger
= seal: Robbe
Robbe | schwimmen | in+dat Meer
Robbe | fangen | acc Fisch
Robbe | liegen | auf+dat Eis/Strand/Felsen
Matrose/Forscher/Kind | füttern | acc Robbe
Robbe | tauchen | unter+dat Eis
= seal: Siegel
König | drücken | acc Siegel | auf+acc=onto Dokument
Richter | prüfen | acc Siegel<Dokument
Dieb | fälschen | acc Siegel<König
Siegel<König | schützen | acc Dokument
= crane: Kran
Kran | heben | acc Balken | über+acc Straße/Haus
Arbeiter | bedienen | acc Kran
Kran | stehen | auf+dat Baustelle
Arbeiter/Mechaniker | reparieren | acc Kran | auf+dat Baustelle
= crane: Kranich
Kranich | brüten | an+dat See/Sumpf
Kranich | fliegen | über+acc See/Wald/Dorf
Forscher | beobachten | acc Kranich | an+dat See/Sumpf
Kranich | bauen | acc Nest | in+dat Sumpf
= trunk: Stamm
Stamm<Baum | fallen | auf+acc=onto Straße/Haus/Auto
Kind/Junge/Katze | klettern | auf+acc=onto Stamm<Baum
Holzfäller | zersägen | acc Stamm<Baum
Vogel | sitzen | auf+dat Stamm<Baum
= trunk: Rüssel
Elefant | heben | acc Rüssel
Elefant | trinken | acc Wasser | mit+dat Rüssel
Elefant | waschen | acc Kind/Auto/Fuß | mit+dat Rüssel
Kind/Mädchen | streicheln | acc Rüssel<Elefant
= trunk: Koffer
Tourist | packen | acc Koffer
Tourist | tragen | acc Koffer | zu+dat Bahnhof/Hotel
PERSON | legen | acc Kleid/Mantel/Hut | in+acc=into Koffer
Tourist | vergessen | acc Koffer | in+dat Zug/Hotel
= bill: Rechnung
Gast/Tourist | bezahlen | acc Rechnung | in+dat Restaurant/Hotel
Kellner | bringen | dat Gast | acc Rechnung
Gast | prüfen | acc Rechnung<Restaurant/Hotel
PERSON | bekommen | acc Rechnung | von+dat Arzt/Hotel
= bill: Schnabel
BIRD | öffnen | acc Schnabel
BIRD | fangen | acc Fisch/Insekt | mit+dat Schnabel
BIRD | putzen | acc Schnabel
BIRD | halten | acc Fisch/Insekt | in+dat Schnabel
= right: richtig
Student/Kind | finden | acc [richtig]Antwort/Zahl/Wort
Lehrer/Student | kennen | acc [richtig]Antwort/Zahl
Student | geben | dat Lehrer | acc [richtig]Antwort
Antwort/Zahl | sein | pred richtig
= right: recht
PERSON | heben | acc [recht]Hand/Arm/Fuß
PERSON/Spieler | verletzen | acc [recht]BODY
Arzt | untersuchen | acc [recht]BODY<PERSON
PERSON | waschen | acc [recht]Hand/Fuß
= right: Recht
Richter | verteidigen | acc Recht<Frau/Arbeiter/Kind
Gesetz | schützen | acc Recht<Frau/Arbeiter/Kind/Student
Arbeiter/Frau | fordern | acc Recht | auf+acc=to Geld/Wasser
Richter/König | verweigern | dat PERSON | acc Recht
"""
